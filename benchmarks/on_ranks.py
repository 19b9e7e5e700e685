"""Starts a benchmark again as several ranks of this machine, one thread each."""

from __future__ import annotations

import os
import subprocess
import sys


def run_ranks(size: int, file: str, *arguments: str) -> str:
    """Run `file` with arguments on `size` ranks, under torchrun where they are several; what it printed."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)] if size > 1 else []
    command, environment = [sys.executable, *launcher, file, *arguments], {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout

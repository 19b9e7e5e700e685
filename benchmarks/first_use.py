"""What the first use costs: import, and `srns demo` with and without compiled kernels on disk, each in a process of its own.

    python benchmarks/first_use.py [--out FILE]

The difference of the two demos is what cold compilation adds (limit: 15 s).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from srns.runs import environment


def seconds(arguments: list[str], **environment: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], env={**os.environ, **environment}, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write all results as JSON")
    options = parser.parse_args()
    bare = min(seconds(["-c", "pass"]) for _ in range(3))
    imported = min(seconds(["-c", "import srns"]) for _ in range(3)) - bare
    print(f"import srns: {imported:.2f} s (limit 1)")
    with tempfile.TemporaryDirectory() as cache:
        cold = seconds(["-m", "srns", "demo"], NUMBA_CACHE_DIR=cache)
        warm = min(seconds(["-m", "srns", "demo"], NUMBA_CACHE_DIR=cache) for _ in range(2))
    print(f"srns demo: {cold:.1f} s the first time (limit 60), {warm:.1f} s after")
    print(f"compilation adds {cold - warm:.1f} s (limit 15)")
    if options.out is not None:
        found = {"import": imported, "demo, cold": cold, "demo, warm": warm, "compilation": cold - warm}
        options.out.write_text(json.dumps({"environment": environment(), "seconds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

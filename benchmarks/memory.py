"""Peak resident memory of whole runs of `srns train` with SRNS: reading, training, validation, test and saving.

    SRNS_DATA=../shared/data python benchmarks/memory.py [--epochs 7] [--out FILE]

Each run is a process of its own. Limits: 500 MB on ml-1m-paper, 1,000 MB on pinterest.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from srns.runs import environment

RUNS = {"ml-1m-paper": ("paper-ml-1m", 500), "pinterest": ("paper-pinterest", 1000)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=7, help="more than 5, so that the history is full")
    parser.add_argument("--out", type=Path, help="write all results as JSON")
    options = parser.parse_args()
    rows = []
    for name, (preset, limit) in RUNS.items():
        for settings in (["--preset", preset], []):
            with tempfile.TemporaryDirectory() as folder:
                flags = [*settings, "--epochs", str(options.epochs), "--out", f"{folder}/run", "--json"]
                command = [sys.executable, "-m", "srns", "train", name, *flags]
                run = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            what = " ".join(settings) or "default recipe"
            print(
                f"{name}, {what}: peak {run['peak_rss_mb']:,.0f} MB (limit {limit}), {run['seconds_per_epoch']:.2f} s per epoch"
            )
            kept = {part: run[part] for part in ("peak_rss_mb", "seconds_per_epoch", "config")}
            rows.append({"dataset": name, "settings": what, "limit_mb": limit, **kept})
    if options.out is not None:
        record = {"epochs": options.epochs, "environment": environment(), "results": rows}
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What the first use costs: import, and `srns demo` with and without compiled kernels on disk, each in a process of its own.

    python benchmarks/first_use.py

The difference of the two demos is what cold compilation adds (limit: 15 s).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time


def seconds(arguments: list[str], **environment: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], env={**os.environ, **environment}, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    bare = min(seconds(["-c", "pass"]) for _ in range(3))
    print(f"import srns: {min(seconds(['-c', 'import srns']) for _ in range(3)) - bare:.2f} s (limit 1)")
    with tempfile.TemporaryDirectory() as cache:
        cold = seconds(["-m", "srns", "demo"], NUMBA_CACHE_DIR=cache)
        warm = min(seconds(["-m", "srns", "demo"], NUMBA_CACHE_DIR=cache) for _ in range(2))
    print(f"srns demo: {cold:.1f} s the first time (limit 60), {warm:.1f} s after")
    print(f"compilation adds {cold - warm:.1f} s (limit 15)")


if __name__ == "__main__":
    main()

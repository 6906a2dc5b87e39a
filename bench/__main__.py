"""Run the benchmarks one after the other: `python -m bench [NAME ...]`. Each prints a table.

A benchmark is a module of this folder that can be run by itself (`python -m bench.operator_scale`). Benchmarks run one
at a time, each in a separate process, because two that ran together would distort each other's figures.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
# Modules that aren't benchmarks.
SHARED = {"__init__", "__main__", "trainloop_tower"}


def names() -> list[str]:
    """Returns the names of all benchmarks."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in SHARED)


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmarks, and returns 1 if one of them ended with an error."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"Run these benchmarks (default: all of {', '.join(names())})"
    )
    chosen = parser.parse_args(arguments).names or names()
    unknown = sorted(set(chosen) - set(names()))
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such benchmark; there are {', '.join(names())}")
    cpus = len(os.sched_getaffinity(0))
    print(f"{platform.processor() or platform.machine()}, {cpus} cores, Python {platform.python_version()}")
    failed = []
    for name in chosen:
        print(f"\n== {name}", flush=True)
        started = time.monotonic()
        if subprocess.run([sys.executable, "-m", f"bench.{name}"], cwd=FOLDER.parent, check=False).returncode:
            failed.append(name)
        print(f"({time.monotonic() - started:.0f} s)")
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

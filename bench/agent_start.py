"""Measures an agent's start with several builds, Pythons and CPU limits: `python -m bench.agent_start`.

A start is `python3 agent.pyz run` until all imports are done. With a CPU limit, the processes run in their own cgroup
with the kubelet's quota (a tenth of the period for 100m). That needs root and a writable cgroup file system.
"""

from __future__ import annotations

import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.processes.agent.test_zipapp import pythons
from trainmaster_operator.agent.build import bytecode, package_sources, zipapp_bytes

STARTS = 7
# The agent's main imports these first.
IMPORTS = "trainmaster_operator.agent.main, trainmaster_operator.agent.settings, trainmaster_operator.agent.executor"
START = f"import sys; sys.path[:0] = sys.argv[1:]; import {IMPORTS}"
ABOUT = "import platform, sys; print(platform.python_version(), sys.implementation.cache_tag)"
PERIOD_MICROSECONDS = 100_000
LIMITS = {"100m": 0.1, "500m": 0.5, "2": 2.0}
CPU_CGROUP = Path("/sys/fs/cgroup/cpu")


def sources(compression: int) -> Callable[[], bytes]:
    """Returns a function that builds the file without bytecode."""
    return lambda: _zip(dict(package_sources()), compression)


def beside(compression: int) -> Callable[[], bytes]:
    """Returns a function that builds the file with bytecode beside each source."""

    def make() -> bytes:
        texts = package_sources()
        return _zip({**texts, **{f"{path}c": bytecode(path, text) for path, text in texts.items()}}, compression)

    return make


FORMATS: dict[str, Callable[[], bytes]] = {
    "sources, stored": sources(zipfile.ZIP_STORED),
    "sources, deflated": sources(zipfile.ZIP_DEFLATED),
    "bytecode beside, stored": beside(zipfile.ZIP_STORED),
    "bytecode beside, deflated": beside(zipfile.ZIP_DEFLATED),
    "as it is built": zipapp_bytes,
}


def _zip(files: dict[str, str | bytes] | dict[str, str], compression: int) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", compression) as bundle:
        for path, content in files.items():
            bundle.writestr(path, content)
    return archive.getvalue()


@contextmanager
def limited(cpus: float) -> Iterator[Path]:
    """Yields the file through which a process joins a cgroup that may use this many CPUs."""
    group = CPU_CGROUP / f"agent-start-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
        (group / "cpu.cfs_quota_us").write_text(str(int(cpus * PERIOD_MICROSECONDS)))
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def start_seconds(python: str, tag: str, zipapp: Path, join: Path) -> float:
    """Returns the seconds that one start takes."""
    began = time.perf_counter()
    subprocess.run(
        ["sh", "-c", 'echo $$ > "$0"; exec "$@"', join, python, "-B", "-c", START, f"{zipapp}/{tag}", zipapp],
        check=True,
    )
    return time.perf_counter() - began


def main() -> None:
    table = Table("Python", "file", "KiB", *(f"{name} CPU" for name in LIMITS))
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder, f"{number}.pyz") for number, name in enumerate(FORMATS)}
        for name, make in FORMATS.items():
            files[name].write_bytes(make())
        for python in {os.path.realpath(path): None for path in pythons()}:
            version, tag = subprocess.check_output([python, "-c", ABOUT], text=True).split()
            rows = {name: [f"{path.stat().st_size / 1024:.0f}"] for name, path in files.items()}
            for cpus in LIMITS.values():
                with limited(cpus) as join:
                    for name, path in files.items():
                        times = [start_seconds(python, tag, path, join) for _ in range(STARTS)]
                        rows[name].append(f"{statistics.median(times):.3f}")
            for name, row in rows.items():
                table.add_row(version, name, *row)
    Console(width=120).print(table)
    print("seconds from the start to all imports done, medians of", STARTS, "starts; built by", sys.version.split()[0])


if __name__ == "__main__":
    main()

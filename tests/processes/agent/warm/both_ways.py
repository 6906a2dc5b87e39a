"""One worker's agent starts ranks of a real torch cold (by torchrun) or warm."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.processes.agent.agents import Agent, Job, until

NO_MEMORY = "100 MiB of memory are left, and a warm process gets none below 768 MiB"


def start(
    job: Job,
    warm: bool,
    *command: str,
    ranks: int = 2,
    worker: int = 0,
    learned: list[str] | None = None,
    python: str = sys.executable,
    **environ: str,
) -> Agent:
    """Start an agent whose ranks run Python; `command` leaves Python itself out. `learned` is what an agent before it
    learned, so its ranks aren't asked for their imports.
    """
    settings = {"TRAINMASTER_LAUNCHER": "torchrun", "TRAINMASTER_WARM_START": str(warm).lower()}
    agent = job.agent(worker, NPROC_PER_NODE=str(ranks), **settings, **environ)
    if learned is not None:
        (agent.state_dir / "warm").mkdir()
        (agent.state_dir / "warm" / "modules").write_text(json.dumps(learned))
    return agent.start(python, *command)


def stand_in(job: Job, **modules: str) -> str:
    """Make packages that a warm process takes for torch and others; returns their folder, for PYTHONPATH.

    If torch itself isn't tested, a test would spend most of its time importing it.
    """
    folder = job.folder / "site-packages"
    for name, source in {"torch": "import random", **modules}.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(source)
    return str(folder)


def until_lines(agent: Agent, *lines: str, seconds: float = 60.0) -> None:
    """Wait until a worker has printed all of these lines."""
    until(lambda: set(lines) <= set(agent.output().splitlines()), seconds, f"{lines} in {agent.output()}")


def until_files(paths: list[Path], seconds: float = 90.0) -> None:
    until(lambda: all(path.exists() for path in paths), seconds, f"{paths}")


def starts(agent: Agent) -> list[str]:
    """Returns the agent's messages about how attempts start."""
    said = (line.removeprefix("[agent]: ") for line in agent.output().splitlines() if line.startswith("[agent]: "))
    return [line for line in said if " starts " in line]


def without_memory(job: Job) -> Path:
    """Makes a cgroup without memory left for a warm process, for TRAINMASTER_CGROUP_ROOT."""
    groups = job.folder / "cgroup"
    groups.mkdir(exist_ok=True)
    (groups / "memory.max").write_text("209715200\n")
    (groups / "memory.current").write_text("104857600\n")
    return groups

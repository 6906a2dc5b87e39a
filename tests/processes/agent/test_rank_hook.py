"""A rank's Python reports the exception that ends it as it is raised, and exits as before (`library/rank_hook`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .agents import Agent, Job, Stream, until
from .test_library import image as image
from .test_library import zipapp as zipapp
from .warm.both_ways import stand_in, starts, until_lines, without_memory

SLOW = """
import atexit, os, sys, time
def saves():
    while not os.path.exists("reported"):
        time.sleep(0.01)
    open("saved", "w").close()
atexit.register(saves)
def step():
    raise ValueError("lost")
print("begins", flush=True)
{hook}
step()
"""
EXPLICIT = """
import os, sys, threading
try:
    raise ValueError("shown only")
except ValueError:
    sys.excepthook(*sys.exc_info())
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
if os.fork() == 0:
    raise ValueError("of a child")
os.wait()
print("well", flush=True)
sys.exit(3)
"""
# torch's own hook, which buffers what the hooks before it print.
TORCHS = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
"""


def begin(job: Job, zipapp: list[str], script: str, python: str = sys.executable, **environ: str) -> Agent:
    (job.folder / "train.py").write_text(script)
    agent = job.agent(0, **environ)
    agent.start(python, str(job.folder / "train.py"), agent=["env", "-C", str(job.folder), *zipapp])
    job.annotate(job.assignment(1))
    return agent


def reported(stream: Stream, state: str = "Failed", worker: int = 0) -> dict[str, Any]:
    """Returns a worker's report. Importing torch takes long on a busy machine."""

    def matches(line: dict[str, Any]) -> bool:
        report = line.get("report") or {}
        return (report.get("state"), report.get("worker")) == (state, worker)

    line = next(filter(matches, stream.seen), None) or stream.until(matches, 120.0)
    return dict(line["report"])


WAYS = {
    "exec": {},
    "torchrun": {"TRAINMASTER_LAUNCHER": "torchrun"},
    "cold": {"TRAINMASTER_LAUNCHER": "torchrun", "TRAINMASTER_WARM_START": "true"},
    "warm": {"TRAINMASTER_LAUNCHER": "torchrun", "TRAINMASTER_WARM_START": "true"},
}


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_is_reported_while_the_process_still_exits(way: str, zipapp: list[str], job: Job) -> None:
    environ = {"TRAINMASTER_CGROUP_ROOT": str(without_memory(job))} if way == "cold" else {}
    environ |= {"PYTHONPATH": stand_in(job)} if way in ("cold", "warm") else {}
    agent = begin(job, zipapp, SLOW.format(hook=TORCHS if way == "exec" else ""), **environ, **WAYS[way])
    report = reported(Stream(agent))
    assert [way] == [line.split()[3].rstrip(":") for line in starts(agent)] or way in ("exec", "torchrun")
    assert not (job.folder / "saved").exists(), "a function registered with atexit still runs"
    assert (report["reason"], report["exitCode"], report["rank"], report["culprit"]) == ("Error", 1, 0, True)
    assert report["error"].splitlines()[-1] == "ValueError: lost"
    (job.folder / "reported").touch()
    until((job.folder / "saved").exists, what="what is registered with atexit has run")
    until(lambda: "ValueError: lost" in agent.output(), what="the traceback is printed too")


def test_an_exception_that_ends_nothing_is_not_reported(zipapp: list[str], job: Job) -> None:
    agent = begin(job, zipapp, EXPLICIT)
    report = reported(Stream(agent))
    assert (report["exitCode"], "well" in agent.output()) == (3, True)


@pytest.mark.parametrize("chained", [True, False])
def test_a_hook_of_the_users_own_decides_about_the_exit_code(chained: bool, zipapp: list[str], job: Job) -> None:
    call = "before(*error); " if chained else ""
    hook = f"before = sys.excepthook\nsys.excepthook = lambda *error: ({call.replace('; ', ',')} saves(), os._exit(7))"
    agent = begin(job, zipapp, SLOW.format(hook=hook))
    until_lines(agent, "[rank 0]: begins")
    (job.folder / "reported").touch()
    report = reported(Stream(agent))
    assert report["exitCode"] == 7


def test_the_exception_of_a_launcher_is_left_to_its_exit(zipapp: list[str], job: Job) -> None:
    """The rank's own exception is in the output."""
    program = "raise KeyError('label')"
    hook = f"import subprocess\nstep = lambda: subprocess.run([sys.executable, '-c', {program!r}], check=True)"
    agent = begin(job, zipapp, SLOW.format(hook=hook))
    until_lines(agent, "[rank 0]: KeyError: 'label'")
    (job.folder / "reported").touch()
    error = reported(Stream(agent))["error"]
    assert "KeyError: 'label'" in error and "CalledProcessError" in error


@pytest.mark.parametrize("meet", [True, False])
def test_ranks_that_never_meet_are_reported(meet: bool, zipapp: list[str], job: Job) -> None:
    group = "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n" if meet else ""
    (job.folder / "train.py").write_text(f"import torch\n{group}dist = None")
    agents = [job.agent(worker) for worker in (0, 1)]
    for agent in agents:
        agent.start(sys.executable, str(job.folder / "train.py"), agent=zipapp)
    job.annotate(job.assignment(1, workers=(0, 1)))
    stream = Stream(agents[0])
    assert [reported(stream, "Finished", worker).get("alone", False) for worker in (0, 1)] == [not meet] * 2


def test_the_sitecustomize_of_the_image_runs_too(zipapp: list[str], image: Path, job: Job) -> None:
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.check_output([image, "-c", where], text=True).strip())
    (packages / "sitecustomize.py").write_text("import builtins; builtins.of_the_image = __file__")
    agent = begin(job, zipapp, "print(of_the_image, flush=True)\n" + SLOW.format(hook=""), python=str(image))
    until_lines(agent, f"[rank 0]: {packages / 'sitecustomize.py'}")
    reported(Stream(agent))
    assert not (job.folder / "saved").exists()

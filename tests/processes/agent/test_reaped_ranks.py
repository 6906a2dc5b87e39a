"""The agent finds out which rank failed even if the launcher reaped it before the agent looked."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainmaster_operator.agent.planner.classification import Ending
from trainmaster_operator.agent.process import children

from .agents import Agent, Job, is_gone, until

# Starts two ranks as torchrun does, reaps the second when it has ended, and lives on or does what torchrun does.
LAUNCHER = """#!{python} -S
import os, pathlib, subprocess, sys, time
command = sys.argv[sys.argv.index("/bin/sh") :]
folder = pathlib.Path(command[-1])

def start(rank):
    errors = pathlib.Path(command[command.index("-c") + 2], "torchrun", "life", "attempt_0", str(rank))
    errors.mkdir(parents=True)
    environ = {{"RANK": str(rank), "LOCAL_RANK": str(rank), "TORCHELASTIC_ERROR_FILE": str(errors / "error.json")}}
    return subprocess.Popen(command, env={{**os.environ, **environ}})

ranks = [start(0), start(1)]
ranks[1].wait()
if {summary}:
    ranks[0].terminate()
(folder / "reaped").touch()
time.sleep(0.5 if {summary} else 300)
sys.exit(f"failed (exitcode: -9) local_rank: 1 (pid: {{ranks[1].pid}}) of binary: /bin/sh")
"""
WAITS = 'echo $$ > "$1/pid-$LOCAL_RANK"; exec sleep 300'
RAISES = f"""
if [ $LOCAL_RANK = 0 ]; then {WAITS}; fi
echo $$ > "$1/pid-1"
until [ -e "$1/raise" ]; do sleep 0.02; done
printf '{{"message": "ValueError: sample 7 is no sentence"}}' > "$TORCHELASTIC_ERROR_FILE"
exit 1
"""
THIS_KERNEL = ""
OLDER_KERNEL = """
import errno, fcntl
def ioctl(*_):
    raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")
fcntl.ioctl = ioctl
"""
"""Linux before 6.15, for the agent."""
NO_PIDFD = "import os; del os.pidfd_open"


def start(job: Job, kernel: str, summary: bool, command: str) -> Agent:
    """Start two ranks below a launcher, with the agent on this kernel or on one that is made to look different."""
    torchrun = job.folder / "bin" / "torchrun"
    torchrun.parent.mkdir()
    torchrun.write_text(LAUNCHER.format(python=sys.executable, summary=summary))
    torchrun.chmod(0o755)
    (job.folder / "sitecustomize.py").write_text(kernel)
    environ = {"TRAINMASTER_LAUNCHER": "torchrun", "NPROC_PER_NODE": "2", "PYTHONPATH": str(job.folder)}
    agent = job.agent(0, PATH=f"{torchrun.parent}:{os.environ['PATH']}", **environ)
    agent.start("sh", "-c", command, "sh", str(job.folder))
    job.annotate(job.assignment(1))
    agent.until_state("Running")
    return agent


def pid(folder: Path, rank: int) -> int:
    path = folder / f"pid-{rank}"
    return int(until(lambda: path.exists() and path.read_text().strip(), what=f"rank {rank} runs"))


def signal_agent(agent: Agent, number: int) -> None:
    """Stop the agent, as on a machine without time for it, or let it continue."""
    assert agent.process is not None
    agent.process.send_signal(number)


@pytest.mark.parametrize("kernel", [THIS_KERNEL, OLDER_KERNEL, NO_PIDFD], ids=["this kernel", "older", "no pidfd"])
def test_a_rank_that_torchrun_ended_isnt_taken_for_the_one_that_it_had_reaped(job: Job, kernel: str) -> None:
    agent = start(job, kernel, True, WAITS)
    waiting, killed = pid(job.folder, 0), pid(job.folder, 1)
    signal_agent(agent, signal.SIGSTOP)
    os.kill(killed, signal.SIGKILL)
    until((job.folder / "reaped").exists)
    until(lambda: is_gone(waiting), what="the other rank is gone")
    signal_agent(agent, signal.SIGCONT)
    assert agent.exit_code() == 137
    report = agent.termination()
    assert (report["rank"], report["reason"], report["signal"]) == (1, "Signal", 9)


@pytest.mark.parametrize("kernel", [THIS_KERNEL, OLDER_KERNEL], ids=["this kernel", "older"])
def test_a_rank_that_raised_is_named_though_its_launcher_has_reaped_it_and_lives_on(job: Job, kernel: str) -> None:
    agent = start(job, kernel, False, RAISES)
    pid(job.folder, 0), pid(job.folder, 1)
    signal_agent(agent, signal.SIGSTOP)
    (job.folder / "raise").touch()
    until((job.folder / "reaped").exists)
    signal_agent(agent, signal.SIGCONT)
    assert agent.exit_code() == 1
    report = agent.termination()
    assert (report["rank"], report["reason"], report["exitCode"], report["culprit"]) == (1, "Error", 1, True)
    assert report["error"] == "ValueError: sample 7 is no sentence"


@pytest.mark.parametrize(
    ("command", "ending"), [("exit 3", Ending(3)), ("kill -9 $$", Ending(137, signal.SIGKILL)), ("exit 0", Ending(0))]
)
def test_the_status_of_a_process_can_be_had_after_it_was_reaped(command: str, ending: Ending) -> None:
    process = subprocess.Popen(["sh", "-c", f"read line; {command}"], stdin=subprocess.PIPE)
    pidfd = os.pidfd_open(process.pid)
    assert children.reaped_ending(pidfd) is None, "it lives"
    process.communicate(b"\n")
    major, minor = (int(part) for part in platform.release().split(".")[:2])
    assert children.reaped_ending(pidfd) == (ending if (major, minor) >= (6, 15) else None)
    assert children.zombie_ending(process.pid) is None
    os.close(pidfd)

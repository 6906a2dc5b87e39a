"""The next attempt starts whatever happens to the warm process: cold if necessary, with the reason in the log."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.processes.agent.agents import Agent, Job, Stream, is_gone, until
from tests.processes.agent.test_zipapp import pythons
from trainmaster_operator.agent.build import zipapp_bytes
from trainmaster_operator.agent.errors import NO_TORCH
from trainmaster_operator.agent.process import children
from trainmaster_operator.rendering import AgentConfigMap, agent_source

from .both_ways import NO_MEMORY, stand_in, start, starts, until_lines, without_memory

RANK = """
import os, pathlib, sys, time
import torch
import own
folder = pathlib.Path(sys.argv[1])
attempt, rank = os.environ["TRAINMASTER_ATTEMPT"], os.environ["RANK"]
pathlib.Path(os.environ["TRAINMASTER_PROGRESS_FILE"] + "." + rank).write_text('{"step": 1}')
(folder / f"ran-{attempt}-{rank}").write_text(f"{os.getpid()} {own.VALUE}")
while True:
    time.sleep(0.05)
"""


SHORT = """
import multiprocessing, os, sys, threading
def nothing():
    pass
if __name__ == "__main__":
    same = threading.main_thread().native_id == os.getpid()
    print(sys.argv, sys.path[0], "sitecustomize" in sys.modules, "torch" in sys.modules, same, flush=True)
    process = multiprocessing.get_context("spawn").Process(target=nothing)
    process.start()
    process.join()
    print("the child has ended with", process.exitcode, flush=True)
"""
FAILING_FORK = """
import os
fork = os.fork
forks = iter(range(9))
def failing():
    if next(forks) == 2:
        raise OSError(11, "Resource temporarily unavailable")
    return fork()
os.fork = failing
"""
"""The process that forks the ranks is forked, and the first rank; the second isn't."""


@pytest.fixture
def script(job: Job) -> Path:
    """Makes a program that stays, with the user's own code beside it."""
    (job.folder / "own.py").write_text("VALUE = 1\n")
    (job.folder / "train.py").write_text(RANK)
    return job.folder / "train.py"


def run(agent: Agent, attempt: int, ranks: int = 2) -> list[list[str]]:
    """Start an attempt; returns each rank's pid and the value in the user's own code."""
    agent.annotate(agent.job.assignment(attempt))
    paths = [agent.job.folder / f"ran-{attempt}-{rank}" for rank in range(ranks)]
    until(lambda: all(path.exists() and path.read_text() for path in paths), 60, f"attempt {attempt}: {agent.output()}")
    # The agent logs it once all of them have been forked, and the first may be faster.
    until(lambda: any(line.startswith(f"attempt {attempt} ") for line in starts(agent)), what=agent.output())
    return [path.read_text().split() for path in paths]


def start_light(job: Job, script: Path, **environ: str) -> Agent:
    """Starts an agent whose ranks import a torch that takes no time."""
    return start(job, True, str(script), str(job.folder), PYTHONPATH=stand_in(job), **environ)


def start_warm(job: Job, script: Path, **environ: str) -> Agent:
    agent = start_light(job, script, **environ)
    run(agent, 1)
    assert starts(agent) == ["attempt 1 starts warm"]
    return agent


def warm_pid(agent: Agent) -> int:
    """Returns the agent's child that isn't a rank: it leads a process group, but no session."""
    assert agent.process is not None
    below = children.process_table().values()
    pids = [each.pid for each in below if each.parent == agent.process.pid and each.state != "Z"]
    return int(until(lambda: next((pid for pid in pids if os.getsid(pid) != pid), 0), what="a warm process"))


def until_learned(agent: Agent) -> None:
    """Waits until there is a new warm process. The old one has found modules that can't be forked, and meanwhile
    imports the rest at a low priority.
    """

    def is_another() -> bool:
        assert agent.process is not None
        below = children.process_table().values()
        pids = [each.pid for each in below if each.parent == agent.process.pid and each.state != "Z"]
        with suppress(ProcessLookupError):
            warm = [pid for pid in pids if os.getsid(pid) != pid]
            return bool(warm) and all(os.getpriority(os.PRIO_PROCESS, pid) < 19 for pid in warm)
        return False

    until(is_another, what="another warm process")


def test_the_users_own_code_is_read_anew_by_each_attempt(job: Job, script: Path) -> None:
    agent = start_warm(job, script)
    (job.folder / "own.py").write_text("VALUE = 'edited'\n")
    assert [value for _, value in run(agent, 2)] == ["edited", "edited"]
    assert starts(agent)[-1] == "attempt 2 starts warm"


def test_what_is_learned_is_kept_for_the_agents_next_life(job: Job, script: Path) -> None:
    agent = start_warm(job, script)
    learned = agent.state_dir / "warm" / "modules"
    until(learned.exists, what="a list of modules")
    assert "own" not in learned.read_text()
    agent.kill()
    children.send(children.leftovers(str(agent.state_dir)), signal.SIGKILL)
    agent.start(*agent_command(script, job))
    run(agent, 2)
    assert starts(agent)[-1] == "attempt 2 starts warm"
    assert not (agent.state_dir / "attempt-2" / "modules.0").exists(), "nobody was asked again"


def test_ranks_are_forked_when_all_that_was_learned_is_imported(job: Job) -> None:
    """Otherwise each rank would import the rest itself, all of them beside the warm process."""
    script = job.folder / "train.py"
    script.write_text("import sys\nprint('slow' in sys.modules, 'last' in sys.modules, flush=True)\n")
    slow = "import time\ntime.sleep(1)\n"
    agent = start(job, True, str(script), learned=["slow", "last"], PYTHONPATH=stand_in(job, slow=slow, last=""))
    agent.annotate(job.assignment(1))
    until_lines(agent, "[rank 0]: True True", "[rank 1]: True True")


def agent_command(script: Path, job: Job) -> tuple[str, ...]:
    return sys.executable, str(script), str(job.folder)


def test_a_warm_process_that_was_killed_costs_nothing_but_a_cold_start(job: Job, script: Path) -> None:
    agent = start_warm(job, script)
    ranks = run(agent, 2)
    first = warm_pid(agent)
    os.kill(first, signal.SIGKILL)
    until(lambda: is_gone(first), what="its end")
    assert not any(is_gone(int(pid)) for pid, _ in ranks), "the ranks live on"
    run(agent, 3)
    assert starts(agent)[2].startswith("attempt 3 starts ")
    run(agent, 4)
    assert starts(agent)[3] == "attempt 4 starts warm"


def test_a_warm_process_that_was_stopped_is_killed_and_forks_nothing_later(job: Job, script: Path) -> None:
    agent = start_warm(job, script)
    # Until it has imported the modules learned from attempt 1, the agent would wait for it for up to a minute.
    until((agent.state_dir / "warm" / "modules").exists, what="what was learned is imported")
    pid = warm_pid(agent)
    os.kill(pid, signal.SIGSTOP)
    run(agent, 2)
    assert starts(agent)[1:] == ["attempt 2 starts cold: the warm process didn't answer in time"]
    assert is_gone(pid)
    until_warm_again(agent, 2)
    run(agent, 3)
    assert starts(agent)[-1] == "attempt 3 starts warm"


def until_warm_again(agent: Agent, attempt: int) -> None:
    """Wait until ranks that started cold run; then there is a warm process again."""
    agent.until_state("Running", attempt)
    warm_pid(agent)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (
            "import threading as t\nt.Thread(target=t.Event().wait, name='mine', daemon=True).start()",
            "started the thread 'mine'",
        ),
        ("import socket\nS = socket.socket()", "opened a socket"),
        ("import os\nR = os.environ.get('RANK')", "read RANK"),
        ("import random\nrandom.seed(0)", "seeded random numbers"),
        ("import subprocess\nP = subprocess.Popen(['sleep', '600'])", "started a process"),
    ],
)  # fmt: skip
def test_a_module_that_cannot_be_forked_is_left_out(job: Job, script: Path, module: str, reason: str) -> None:
    (job.folder / "bad.py").write_text(module)
    agent = start_light(job, script, TRAINMASTER_PRELOAD="bad,own")
    run(agent, 1)
    assert f"[agent]: importing bad {reason}, so ranks import it themselves" in agent.output()
    assert starts(agent) == [f"attempt 1 starts cold: importing bad {reason}"]
    until_learned(agent)
    run(agent, 2)
    assert starts(agent)[-1] == "attempt 2 starts warm"


def test_all_modules_that_cannot_be_forked_cost_one_warm_process(job: Job, script: Path) -> None:
    """They are among the learned modules, and the other modules are imported before the next fork."""
    opens = "import os\nFD = os.open('/dev/ptmx', os.O_RDWR)"
    modules = {"device": opens, "imports_it": "import device", "other": f"from threading import Event\n{opens}"}
    sees = "import sys\nprint(*('fine' in sys.modules, 'device' in sys.modules), flush=True)\n"
    script.write_text(sees + script.read_text())
    path = stand_in(job, fine="", **modules)
    agent = start(
        job, True, str(script), str(job.folder), learned=["device", "imports_it", "other", "fine"], PYTHONPATH=path
    )
    run(agent, 1)

    def told() -> list[str]:
        return [line for line in agent.output().splitlines() if "ranks import it themselves" in line]

    # The process continues once the attempt has started without it.
    until(lambda: len(told()) >= 2)
    lines = told()
    for name in ("device", "other"):
        assert sum(line.startswith(f"[agent]: importing {name} opened /dev/") for line in lines) == 1
    assert len(lines) == 2, "what imports one of them is left out without a word"
    assert starts(agent)[0].startswith("attempt 1 starts cold: importing device opened /dev/")
    until_learned(agent)
    run(agent, 2)
    assert starts(agent)[-1] == "attempt 2 starts warm"
    assert "[rank 0]: True False" in agent.output().splitlines()


def test_a_preload_that_is_not_there_is_named(job: Job, script: Path) -> None:
    agent = start_warm(job, script, TRAINMASTER_PRELOAD="mypackage.data")
    assert "spec.warmStart.preload: 'mypackage.data' cannot be imported: ModuleNotFoundError" in agent.output()


def test_preloaded_code_that_was_edited_is_not_used_any_more(job: Job, script: Path) -> None:
    agent = start_warm(job, script, TRAINMASTER_PRELOAD="own")
    (job.folder / "own.py").write_text("VALUE = 'edited'\n")
    assert [value for _, value in run(agent, 2)] == ["edited", "edited"]
    assert starts(agent)[-1] == f"attempt 2 starts cold: {job.folder / 'own.py'} has changed since it was imported"


def test_a_file_of_the_users_with_a_packages_name_is_found_as_in_a_cold_start(job: Job, script: Path) -> None:
    agent = start_warm(job, script)
    (job.folder / "torch.py").write_text("")
    run(agent, 2)
    reason = f"{job.folder / 'torch.py'} has the name of a module that is imported already"
    assert starts(agent)[-1] == f"attempt 2 starts cold: {reason}"


def test_a_command_that_cannot_be_warm_says_so(job: Job, script: Path) -> None:
    agent = start(job, True, "-E", str(script), str(job.folder))
    run(agent, 1)
    assert starts(agent) == ["attempt 1 starts cold: Python's flag -E ignores PYTHONPATH"]


def test_a_python_that_reads_no_sitecustomize_never_runs_the_program_by_itself(job: Job, script: Path) -> None:
    """A wrapper that drops PYTHONPATH would run the user's program without a rank, beside the real ones."""
    wrapper = job.folder / "python3"
    wrapper.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec "{sys.executable}" "$@"\n')
    wrapper.chmod(0o755)
    agent = job.agent(0, NPROC_PER_NODE="2", TRAINMASTER_LAUNCHER="torchrun", TRAINMASTER_WARM_START="true")
    agent.start(str(wrapper), str(script), str(job.folder))
    run(agent, 1)
    assert starts(agent) == ["attempt 1 starts cold: this Python doesn't import sitecustomize from PYTHONPATH"]


@pytest.mark.parametrize("python", pythons())
def test_ranks_are_forked_under_every_python_of_this_machine(python: str, job: Job) -> None:
    script = job.folder / "train.py"
    script.write_text(SHORT)
    path = stand_in(job)
    agent = job.agent(0, NPROC_PER_NODE="2", TRAINMASTER_LAUNCHER="torchrun", TRAINMASTER_WARM_START="true")
    agent.start(
        python, str(script), "word", agent=[sys.executable, "-m", "trainmaster_operator.agent"], PYTHONPATH=path
    )
    agent.annotate(job.assignment(1))
    for rank in range(2):
        sees = f"[rank {rank}]: ['{script}', 'word'] {job.folder} False True True"
        until_lines(agent, sees, f"[rank {rank}]: the child has ended with 0")
    assert starts(agent) == ["attempt 1 starts warm"]


def test_the_zipapp_has_the_stages_source(job: Job, script: Path) -> None:
    """Its bytecode is stored separately, and the running copy has no name."""
    zipapp = job.folder / "agent.pyz"
    zipapp.write_bytes(zipapp_bytes())
    settings = {"TRAINMASTER_LAUNCHER": "torchrun", "TRAINMASTER_WARM_START": "true"}
    agent = job.agent(0, PYTHONPATH=stand_in(job), **settings)
    verifying = agent_source.agent_command(AgentConfigMap(agent_source.config_map_name(zipapp_bytes())))[1:4]
    agent.start(*agent_command(script, job), agent=[sys.executable, *verifying, str(zipapp)])
    run(agent, 1, ranks=1)
    assert starts(agent) == ["attempt 1 starts warm"]


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("fork", "cannot fork all ranks"),
        (None, NO_MEMORY),
    ],
)
def test_without_memory_or_processes_ranks_start_cold(job: Job, script: Path, limit: str | None, reason: str) -> None:
    if limit is None:
        groups = str(without_memory(job))
        agent = start_light(job, script, TRAINMASTER_CGROUP_ROOT=groups)
    else:
        # A preloaded module makes the next fork of the process fail, as a cgroup's pids.max does.
        (job.folder / "limited.py").write_text(FAILING_FORK)
        agent = start_light(job, script, TRAINMASTER_PRELOAD="limited")
    run(agent, 1)
    assert starts(agent) == [f"attempt 1 starts cold: {reason}"]
    if limit is None:
        (job.folder / "cgroup" / "memory.max").write_text(f"{2 << 30}\n")
        run(agent, 2)
        assert starts(agent)[-1] == "attempt 2 starts warm"


@pytest.mark.parametrize(
    ("end", "how"), [("kill -9 $$", "by signal 9"), ("exit 1", "with exit code 1")], ids=["killed", "no memory"]
)
def test_a_probe_that_gave_no_answer_is_asked_again(job: Job, script: Path, end: str, how: str) -> None:
    wrapper, asked = job.folder / "python3", job.folder / "asked"
    unanswered = f'if [ "$TRAINMASTER_WARM" = probe ] && [ ! -e {asked} ]; then touch {asked}; {end}; fi'
    wrapper.write_text(f'#!/bin/sh\n{unanswered}\nexec "{sys.executable}" "$@"\n')
    wrapper.chmod(0o755)
    agent = start(job, True, str(script), str(job.folder), python=str(wrapper), PYTHONPATH=stand_in(job))
    run(agent, 1)
    assert starts(agent) == [f"attempt 1 starts cold: the probe of this Python has ended {how}"]
    until_warm_again(agent, 1)
    run(agent, 2)
    assert starts(agent)[-1] == "attempt 2 starts warm"


def test_a_disk_that_was_full_costs_one_attempt(job: Job, script: Path) -> None:
    agent = start_light(job, script)
    agent.until_healthy()
    # Nothing can be written below it, not even by root.
    (agent.state_dir / "warm").write_text("")
    stream = Stream(agent)
    agent.annotate(job.assignment(1))
    line = stream.until_report("Failed")
    assert line["report"]["reason"] == "LaunchError"
    assert line["report"]["error"].startswith(f"cannot write {agent.state_dir}/warm")
    agent.request("POST", "/v1/ack", {"seq": line["seq"]})
    (agent.state_dir / "warm").unlink()
    run(agent, 2)
    assert starts(agent)[-1] == "attempt 2 starts warm"
    stream.close()


@pytest.mark.parametrize(
    ("torch", "reason", "error"),
    [
        ("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')", "LaunchError", NO_TORCH),
        ("raise OSError('libcudart.so.12: no such file')", "Error", "OSError: libcudart.so.12: no such file"),
    ],
)
def test_a_torch_that_is_not_there_or_broken_fails_the_attempt_and_not_the_next_one(
    job: Job, script: Path, torch: str, reason: str, error: str
) -> None:
    packages = stand_in(job)
    (Path(packages) / "torch" / "__init__.py").write_text(torch)
    agent = start(job, True, str(script), str(job.folder), PYTHONPATH=packages)
    stream = Stream(agent)
    agent.annotate(job.assignment(1))
    line = stream.until_report("Failed")
    assert (line["report"]["reason"], line["report"]["error"].splitlines()[-1]) == (reason, error)
    agent.request("POST", "/v1/ack", {"seq": line["seq"]})
    (Path(packages) / "torch" / "__init__.py").write_text("import random")
    run(agent, 2)
    assert starts(agent)[-1] == "attempt 2 starts warm"
    stream.close()


EARLY = """
import os, pathlib, sys, time
from torch.distributed import TCPStore
used = pathlib.Path(sys.argv[1], "used")
if os.environ["RANK"] == "0":
    while not used.exists():
        time.sleep(0.01)
else:
    TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False).set("key", "value")
    used.touch()
print("used", flush=True)
"""


@pytest.mark.parametrize("memory", [True, False], ids=["warm", "cold"])
def test_the_store_is_there_before_rank_0_does_anything(job: Job, memory: bool) -> None:
    (job.folder / "early.py").write_text(EARLY)
    environ = {} if memory else {"TRAINMASTER_CGROUP_ROOT": str(without_memory(job))}
    agent = start(job, True, str(job.folder / "early.py"), str(job.folder), **environ)
    agent.annotate(job.assignment(1))
    until_lines(agent, "[rank 0]: used", "[rank 1]: used")
    assert agent.exit_code() == 0, "and nothing waits for the store at the end"


def test_a_store_that_cannot_listen_ends_the_attempt_with_its_reason(job: Job) -> None:
    (job.folder / "early.py").write_text("import time\ntime.sleep(600)\n")
    assignment = job.assignment(1)
    with socket.socket() as taken:
        taken.bind((job.address(0), assignment["port"]))
        taken.listen()
        agent = start(job, True, str(job.folder / "early.py"))
        agent.annotate(assignment)
        # Nobody watches, so the agent reports by exiting.
        assert agent.exit_code(60) == 1, agent.output()
    report = agent.termination()
    assert report["reason"] == "Error"
    assert report["error"].startswith("the process that serves torch's store has ended\n")
    assert "EADDRINUSE" in report["error"]


def test_a_kill_for_memory_that_took_the_warm_process_is_no_ranks(job: Job, script: Path) -> None:
    groups = job.folder / "cgroup"
    groups.mkdir()
    (groups / "memory.events").write_text("oom_kill 0\n")
    agent = start_warm(job, script, TRAINMASTER_CGROUP_ROOT=str(groups))
    ranks = run(agent, 2)
    pid = warm_pid(agent)
    scores = [int(Path(f"/proc/{each}/oom_score_adj").read_text()) for each in (pid, ranks[0][0], ranks[1][0])]
    assert scores[0] > scores[1] == scores[2], "the kernel takes it first"
    (groups / "memory.events").write_text("oom_kill 1\n")
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid), what="its end")
    time.sleep(0.2)
    stream = Stream(agent)
    os.kill(int(ranks[0][0]), signal.SIGKILL)
    report = stream.until_report("Failed", 2)["report"]
    assert (report["reason"], report["rank"]) == ("Signal", 0), "not OOMKilled"
    stream.close()


def test_a_warm_process_gives_its_memory_up_where_the_ranks_run_short(job: Job, script: Path) -> None:
    """On cgroup v2 the kubelet has the kernel end all processes of a container that exceeds its limit."""
    groups = without_memory(job)
    (groups / "memory.current").write_text("0\n")
    (groups / "memory.max").write_text(f"{2 << 30}\n")
    agent = start_warm(job, script, TRAINMASTER_CGROUP_ROOT=str(groups))
    ranks = run(agent, 2)
    pid = warm_pid(agent)
    (groups / "memory.current").write_text(f"{(2 << 30) - (100 << 20)}\n")
    until(lambda: is_gone(pid), what="its end")
    reason = "100 MiB of memory were left beside the warm process, which was ended for it"
    until(lambda: f"[agent]: {reason}\n" in agent.output(), what="the reason")
    assert not any(is_gone(int(rank[0])) for rank in ranks)
    run(agent, 3)
    assert starts(agent)[-1] == f"attempt 3 starts cold: {reason}"


def test_a_killed_rank_is_reported_by_the_agent_itself(job: Job, script: Path) -> None:
    agent = start_warm(job, script)
    ranks = run(agent, 2)
    stream = Stream(agent)
    os.kill(int(ranks[1][0]), signal.SIGKILL)
    line = stream.until_report("Failed", 2)
    agent.request("POST", "/v1/ack", {"seq": line["seq"]})
    report = line["report"]
    assert (report["reason"], report["signal"], report["rank"]) == ("Signal", 9, 1)
    until(lambda: all(is_gone(int(pid)) for pid, _ in ranks), what="both ranks are gone")
    run(agent, 3)
    assert starts(agent)[-1] == "attempt 3 starts warm"
    stream.close()


LATE = "import os, time\nwait = os.waitpid\nos.waitpid = lambda *given: (wait(*given), time.sleep(2))[0]\n"


def test_ranks_that_end_before_the_fork_is_answered_cost_no_warm_process(job: Job, script: Path) -> None:
    (job.folder / "late.py").write_text(LATE)
    script.write_text("import sys\nsys.exit(3)\n")
    agent = start_light(job, script, TRAINMASTER_PRELOAD="late")
    stream = Stream(agent)
    for attempt in (1, 2):
        agent.annotate(job.assignment(attempt))
        line = stream.until_report("Failed", attempt)
        agent.request("POST", "/v1/ack", {"seq": line["seq"]})
        assert line["report"]["exitCode"] == 3
    assert starts(agent) == ["attempt 1 starts warm", "attempt 2 starts warm"]
    stream.close()


def test_nothing_is_left_when_the_agent_leaves(job: Job, script: Path) -> None:
    agent = start_warm(job, script)
    pid = warm_pid(agent)
    assert agent.process is not None
    agent.process.send_signal(signal.SIGTERM)
    agent.exit_code()
    until(lambda: is_gone(pid), what="the warm process is gone")


def test_a_rank_of_any_script_gives_its_stacks(job: Job, script: Path) -> None:
    agent = start_warm(job, script)
    stream = Stream(agent)
    assert agent.request("POST", "/v1/collect", {"request": "mine"})[0] == 204
    line = stream.until(lambda line: line["type"] == "evidence")
    stream.close()
    assert sorted(line["ranks"]) == ["0", "1"] and line["request"] == "mine"
    for state in line["ranks"].values():
        assert f'File "{script}"' in state["text"]
    assert agent.report()["state"] != "Failed"

"""Ranks continue while others are lost; the agents are real, and ranks of plain Python follow the same contract."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence

import pytest

from .agents import Agent, Job, Stream, is_gone, until
from .warm.both_ways import stand_in, start, without_memory

# Reports that it can continue, or waits to join, and reads its group whenever it is woken.
RANK = """
import json, os, pathlib, subprocess, sys, threading, time
folder, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
group_file = os.environ["TRAINMASTER_GROUP_FILE"]
path = os.environ["TRAINMASTER_PROGRESS_FILE"] + "." + rank
said, lock = {}, threading.Lock()
def say(**fields):
    with lock:
        said.update(fields)
        with open(path + ".new", "w") as file:
            json.dump(said, file)
        os.replace(path + ".new", path)
def note(*words):
    with (folder / f"rank-{rank}").open("a") as file:
        print(time.monotonic(), os.getpid(), *words, file=file, flush=True)
def step():
    for number in range(1, 10**9):
        time.sleep(0.1)
        say(step=number)
print("process", os.getpid(), flush=True)
note("child", os.environ["TRAINMASTER_ATTEMPT"], subprocess.Popen(["sleep", "300"]).pid)
fifo = os.open(f"{group_file}.{rank}", os.O_RDWR)
if os.environ.get("TRAINMASTER_JOINS") == "1":
    note("joins", json.loads(pathlib.Path(group_file).read_text())["attempt"])
    if (folder / "hang").exists():
        def waits_for_ever(): time.sleep(300)
        waits_for_ever()
    say(continuing="ready")
else:
    note("starts", os.environ["TRAINMASTER_ATTEMPT"])
    say(continuing="able", group=int(os.environ["TRAINMASTER_ATTEMPT"]), step=0)
threading.Thread(target=step, daemon=True).start()
while True:
    os.read(fifo, 1)
    at, found = time.monotonic(), json.loads(pathlib.Path(group_file).read_text())
    note("woken", found["attempt"], json.dumps(found))
    if int(rank) not in found["absent"]:
        now = time.time()
        say(continuing="able", group=found["attempt"], joinedAt=now, restoredAt=now, firstStepAt=now)
"""


def program(job: Job) -> str:
    path = job.folder / "train.py"
    path.write_text(RANK)
    return str(path)


def notes(job: Job, rank: int, what: str, attempt: int) -> list[list[str]]:
    """Returns a rank's notes of this kind and attempt: the time, its pid, and what it has read."""
    path = job.folder / f"rank-{rank}"
    lines = (line.split(" ", 4) for line in path.read_text().splitlines()) if path.exists() else iter(())
    return [line for line in lines if line[2:4] == [what, str(attempt)]]


def pid_of(job: Job, rank: int, what: str, attempt: int) -> int:
    found = until(lambda: notes(job, rank, what, attempt), 60, f"rank {rank} {what} {attempt}")
    return int(found[-1][1])


def start_group(job: Job, size: int, **environ: str) -> tuple[list[Agent], Stream]:
    """Starts workers of one rank each, which all report that they can continue, and an operator that watches them."""
    script = program(job)
    agents = [job.agent(worker).start(sys.executable, script, str(job.folder), **environ) for worker in range(size)]
    job.annotate(job.assignment(1, range(size)))
    stream = Stream(agents[0])
    able: set[int] = set()
    while len(able) < size:
        line = stream.until_report("Running")
        if line["report"].get("able"):
            able.add(line["report"]["worker"])
    return agents, stream


def continued(job: Job, attempt: int, size: int, absent: Sequence[int], **changes: object) -> dict[str, object]:
    master = min(set(range(size)) - set(absent))
    return job.assignment(
        attempt, range(size), continues=1, absent=list(absent), **{"master": job.host(master), **changes}
    )


def push(agent: Agent, assignment: dict[str, object]) -> float:
    """Push an assignment to the leader; returns the time, by the clock that ranks note down."""
    at = time.monotonic()
    assert agent.request("POST", "/v1/assignment", assignment)[0] == 204
    return at


def until_report(agent: Agent, attempt: int, state: str, **fields: bool) -> None:
    def there() -> bool:
        report = agent.report()
        known = {name: report.get(name, False) for name in fields}
        return (report.get("attempt"), report.get("state"), known) == (attempt, state, fields)

    until(there, what=f"{state} {fields} in attempt {attempt}; is {agent.report()}")


def test_the_survivors_of_a_killed_rank_go_on_and_it_joins_them_again(job: Job) -> None:
    agents, stream = start_group(job, 3)
    pids = [pid_of(job, rank, "starts", 1) for rank in range(3)]
    os.kill(pids[1], signal.SIGKILL)
    failed = stream.until_report("Failed")["report"]
    assert (failed["worker"], failed["rank"], failed["signal"]) == (1, 1, 9)
    push(agents[0], continued(job, 2, 3, [1]))
    assert [pid_of(job, rank, "woken", 2) for rank in (0, 2)] == [pids[0], pids[2]]
    read = json.loads(notes(job, 2, "woken", 2)[0][4])
    assert (read["absent"], read["worldSize"], read["master"]) == ([1], 3, job.address(0))
    for worker in (0, 2):
        until_report(agents[worker], 2, "Running", able=True)
    new = pid_of(job, 1, "joins", 2)
    until(lambda: f"[rank 1]: process {new}\n" in agents[1].output(), what="what the new rank has printed")
    until_report(agents[1], 2, "Starting", ready=True)
    push(agents[0], continued(job, 3, 3, []))
    assert [pid_of(job, rank, "woken", 3) for rank in range(3)] == [pids[0], new, pids[2]]
    for agent in agents:
        until_report(agent, 3, "Running", able=True)
    assert not any(is_gone(pid) for pid in (pids[0], new, pids[2]))
    stream.close()


def test_two_workers_are_lost_within_50_ms_one_of_them_the_leaders(job: Job) -> None:
    agents, stream = start_group(job, 4)
    pids = [pid_of(job, rank, "starts", 1) for rank in range(4)]
    os.kill(pids[0], signal.SIGKILL)
    os.kill(pids[2], signal.SIGKILL)
    stream.until_reports("Failed", [0, 2])
    push(agents[0], continued(job, 2, 4, [0]))
    push(agents[0], continued(job, 3, 4, [0, 2]))
    assert [pid_of(job, rank, "woken", 3) for rank in (1, 3)] == [pids[1], pids[3]]
    assert json.loads(notes(job, 3, "woken", 3)[0][4])["master"] == job.address(1), "rank 1 is the lowest one"
    for worker in (1, 3):
        until_report(agents[worker], 3, "Running", able=True)
    for worker in (0, 2):
        until_report(agents[worker], 3, "Starting", ready=True)
    stream.close()


def test_the_survivors_are_stopped_when_nobody_continues_the_attempt(job: Job) -> None:
    _, stream = start_group(job, 3)
    pids = [pid_of(job, rank, "starts", 1) for rank in range(3)]
    begun = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    stream.until_reports("Stopped", [0, 2])
    assert time.monotonic() - begun > 2.9
    stream.close()


def test_they_are_stopped_at_once_when_no_operator_watches(job: Job) -> None:
    agents, stream = start_group(job, 2)
    stream.close()
    time.sleep(4.5)  # a leader that is new, or has just lost its operator, counts as watched for this long
    begun = time.monotonic()
    os.kill(pid_of(job, 1, "starts", 1), signal.SIGKILL)
    agents[0].until_state("Stopped")
    assert time.monotonic() - begun < 2.5


def test_a_new_pod_prepares_ranks_for_a_worker_whose_pod_is_not_known(job: Job) -> None:
    agents, stream = start_group(job, 2)
    survivor = pid_of(job, 0, "starts", 1)
    agents[1].kill()
    assignment = continued(job, 2, 2, [1], uids=["uid-0", ""])
    push(agents[0], assignment)
    assert pid_of(job, 0, "woken", 2) == survivor
    lost = pid_of(job, 1, "starts", 1)
    os.kill(lost, signal.SIGKILL)
    (job.folder / "worker-1").rename(job.folder / "lost")
    pod = job.agent(1)
    pod.uid = "uid-of-the-new-pod"
    pod.start(sys.executable, program(job), str(job.folder))
    pod.annotate(assignment)
    joiner = pid_of(job, 1, "joins", 2)
    until_report(pod, 2, "Starting", ready=True)
    push(agents[0], continued(job, 3, 2, [], uids=["uid-0", pod.uid]))
    assert pid_of(job, 1, "woken", 3) == joiner
    until_report(pod, 3, "Running", able=True)
    stream.close()


def test_a_killed_agents_ranks_are_killed_by_the_next_one_which_prepares_others(job: Job) -> None:
    agents, stream = start_group(job, 2)
    lost = pid_of(job, 1, "starts", 1)
    agents[1].kill()
    agents[1].start(sys.executable, program(job), str(job.folder))
    until(lambda: is_gone(lost))
    report = stream.until(lambda line: line["type"] == "report" and line["report"]["reason"] == "AgentLost")
    assert report["report"]["worker"] == 1
    push(agents[0], continued(job, 2, 2, [1]))
    pid_of(job, 1, "joins", 2)
    until_report(agents[1], 2, "Starting", ready=True)
    until_report(agents[0], 2, "Running", able=True)
    stream.close()


def test_ranks_of_a_pod_that_is_deleted_train_on_until_the_others_go_on_without_them(job: Job) -> None:
    agents, stream = start_group(job, 2, TRAINMASTER_GRACE_SECONDS="30")
    leaving = pid_of(job, 1, "starts", 1)
    assert agents[1].process is not None
    agents[1].process.terminate()
    time.sleep(0.3)
    assert not is_gone(leaving)
    push(agents[0], continued(job, 2, 2, [1]))
    assert agents[1].exit_code() == 143
    assert is_gone(leaving) and not notes(job, 1, "joins", 2)
    until_report(agents[0], 2, "Running", able=True)
    stream.close()


def test_a_rank_that_was_stopped_is_found_and_killed(job: Job) -> None:
    agents, stream = start_group(job, 2, TRAINMASTER_PROGRESS_TIMEOUT="1", TRAINMASTER_FIRST_STEP_TIMEOUT="1")
    stopped, survivor = pid_of(job, 1, "starts", 1), pid_of(job, 0, "starts", 1)
    os.kill(stopped, signal.SIGSTOP)
    report = stream.until_report("Failed")["report"]
    assert (report["reason"], report["rank"]) == ("Hung", 1)
    until(lambda: is_gone(stopped), 1.0)
    push(agents[0], continued(job, 2, 2, [1]))
    assert pid_of(job, 0, "woken", 2) == survivor
    stream.close()


# Workers of several ranks


@pytest.fixture(params=["warm", "cold"])
def three(job: Job, request: pytest.FixtureRequest) -> tuple[Agent, Stream, list[int]]:
    """Starts a worker of three ranks that can continue, forked from a warm process or started by the agent."""
    environ = {"TRAINMASTER_CGROUP_ROOT": str(without_memory(job))} if request.param == "cold" else {}
    agent = start(job, True, program(job), str(job.folder), ranks=3, learned=[], PYTHONPATH=stand_in(job), **environ)
    agent.annotate(job.assignment(1))
    stream = Stream(agent)
    until_report(agent, 1, "Running", able=True)
    return agent, stream, [pid_of(job, rank, "starts", 1) for rank in range(3)]


def test_one_of_a_workers_ranks_is_started_again_beside_the_others(
    job: Job, three: tuple[Agent, Stream, list[int]]
) -> None:
    agent, stream, pids = three
    os.kill(pids[1], signal.SIGKILL)
    report = stream.until_report("Failed")["report"]
    assert (report["rank"], report["able"]) == (1, True)
    children = [int(notes(job, rank, "child", 1)[0][4]) for rank in range(3)]
    until(lambda: is_gone(children[1]), 1.5, "what it had started holds its sockets")
    assert not is_gone(children[0]) and not is_gone(children[2])
    push(agent, continued(job, 2, 1, [1], master=job.host(0)))
    assert [pid_of(job, rank, "woken", 2) for rank in (0, 2)] == [pids[0], pids[2]]
    new = pid_of(job, 1, "joins", 2)
    until_report(agent, 2, "Running", able=True, ready=True)
    # A stopped rank has to be killed, and the waiting one keeps waiting.
    os.kill(pids[2], signal.SIGSTOP)
    push(agent, continued(job, 3, 1, [1, 2], master=job.host(0)))
    until(lambda: is_gone(pids[2]))
    third = pid_of(job, 2, "joins", 3)
    until_report(agent, 3, "Running", able=True, ready=True)
    push(agent, continued(job, 4, 1, [], master=job.host(0)))
    assert [pid_of(job, rank, "woken", 4) for rank in range(3)] == [pids[0], new, third]
    until_report(agent, 4, "Running", able=True)
    os.kill(new, signal.SIGKILL)
    assert stream.until_report("Failed", 4)["report"]["rank"] == 1
    stream.close()


def test_a_rank_that_joins_waits_for_no_store(job: Job) -> None:
    """A warm process's ranks wait a minute for the attempt's store, which no agent serves here."""
    torch = "import sys, types\nsys.modules['torch.distributed'] = types.SimpleNamespace(TCPStore=None)"
    agent = start(job, True, program(job), str(job.folder), ranks=2, learned=[], PYTHONPATH=stand_in(job, torch=torch))
    agent.annotate(job.assignment(2, [0, 1], continues=1, absent=[0, 1], uids=["uid-0", "uid-1"], master=job.host(1)))
    until_report(agent, 2, "Starting", ready=True)
    assert "starts warm" in agent.output()


def test_the_group_reaches_the_ranks_within_50_ms_of_its_push(job: Job) -> None:
    agents, stream = start_group(job, 3)
    delays, answers = [], []
    for attempt in range(2, 22):
        asked_at = time.monotonic()
        agents[0].state()
        answers.append(time.monotonic() - asked_at)
        at = push(agents[0], continued(job, attempt, 3, []))
        for rank in range(3):
            pid_of(job, rank, "woken", attempt)
            delays.append(float(notes(job, rank, "woken", attempt)[0][0]) - at)
    # On a loaded machine an agent's answer is slow, too.
    limit = 0.05 + 8 * statistics.median(answers)
    assert statistics.median(delays) < limit, f"median {statistics.median(delays):.3f} s, limit {limit:.3f} s"
    stream.close()


def test_a_rank_that_hangs_before_it_joins_is_killed_and_started_again_alone(job: Job) -> None:
    (job.folder / "hang").touch()
    agent = start(
        *(job, True, program(job), str(job.folder)),
        **{"ranks": 2, "learned": [], "PYTHONPATH": stand_in(job), "TRAINMASTER_FIRST_STEP_TIMEOUT": "2"},
    )
    agent.annotate(job.assignment(1))
    stream = Stream(agent)
    until_report(agent, 1, "Running", able=True)
    survivor = pid_of(job, 0, "starts", 1)
    os.kill(pid_of(job, 1, "starts", 1), signal.SIGKILL)
    stream.until_report("Failed")
    push(agent, continued(job, 2, 1, [1], master=job.host(0)))
    hangs = pid_of(job, 1, "joins", 2)
    line = stream.until(lambda line: line["type"] == "report" and line["report"].get("reason") == "Hung")
    report = line["report"]
    assert (report["state"], report["rank"], report["able"]) == ("Running", 1, True)
    assert "waits_for_ever" in report["error"], "its stack"
    assert "rank 1 wasn't ready to join the others 2 s after its start" in report["error"]
    until(lambda: is_gone(hangs), 2.0)
    (job.folder / "hang").unlink()
    push(agent, continued(job, 3, 1, [1], master=job.host(0)))
    pid_of(job, 1, "joins", 3)
    until_report(agent, 3, "Running", able=True, ready=True)
    assert not is_gone(survivor)
    stream.close()

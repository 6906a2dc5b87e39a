"""Real agents and real Python ranks hang: the agents name the rank, collect evidence, and report no hang where there is
none.
"""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Any

from trainmaster_operator.agent.process import children

from .agents import Agent, Job, Stream, until

HEAD = """
import faulthandler, json, os, pathlib, signal, sys, threading, time
rank = int(os.environ["RANK"])
path = pathlib.Path(os.environ["TRAINMASTER_PROGRESS_FILE"])
folder = pathlib.Path(__file__).parent
def say(**progress):
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps(progress))
    temporary.rename(path)
def register():
    file = open(os.environ["TRAINMASTER_STACKS_FILE"] + f".{rank}", "w")
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True, chain=False)
    return file
def meet():
    # Until a rank has said something it isn't watched: without this, one that starts late isn't waited for.
    (folder / f"here-{rank}").touch()
    while not all((folder / f"here-{other}").exists() for other in range(int(os.environ["WORLD_SIZE"]))):
        time.sleep(0.01)
def wait_for_peers():
    time.sleep(300)
def stuck_in_the_reader():
    time.sleep(300)
"""


def start(job: Job, size: int, body: str, **environ: str) -> list[Agent]:
    code = job.folder / "train.py"
    code.write_text(HEAD + body)
    agents = [job.agent(worker).start(sys.executable, str(code), **environ) for worker in range(size)]
    job.annotate(job.assignment(1, range(size)))
    return agents


def evidence_before_the_report(stream: Stream) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
    """Returns each rank's evidence, and the report of the hang."""
    found: dict[int, dict[str, Any]] = {}
    while True:
        line = stream.until(
            lambda line: line["type"] == "evidence" or (line.get("report") or {}).get("state") == "Failed"
        )
        if line["type"] == "report":
            return found, line["report"]
        found.update({int(rank): data for rank, data in line["ranks"].items()})


def test_all_ranks_show_their_stacks_and_the_stopped_one_is_named(job: Job) -> None:
    agents = start(
        job,
        3,
        "kept = register()\n"
        "threading.Thread(target=stuck_in_the_reader, daemon=True).start()\n"
        "meet()\nsay(step=3)\n"
        "if rank == 2: os.kill(os.getpid(), signal.SIGSTOP)\n"
        "wait_for_peers()\n",
        TRAINMASTER_PROGRESS_TIMEOUT="1.5",
    )
    stream = Stream(agents[0])
    found, failed = evidence_before_the_report(stream)
    assert (failed["worker"], failed["reason"], failed["rank"], failed["exitCode"]) == (2, "Hung", 2, 68)
    assert "\nrank 2 is stopped by a signal (state T); " in failed["error"]
    assert "at step 3; the limit is failurePolicy.hang.progressSeconds 1.5 s" in failed["error"]
    assert sorted(found) == [0, 1, 2], "of every rank, before the hang is reported"
    assert found[2]["state"] == "T"
    for rank in (0, 1):
        text = found[rank]["text"]
        assert "in wait_for_peers" in text
        assert "in stuck_in_the_reader" in text, "of all threads"
        assert text.index("in wait_for_peers") < text.index("in stuck_in_the_reader"), "the main thread first"
    assert {stream.until_report("Stopped")["report"]["worker"] for _ in range(2)} == {0, 1}
    stream.close()


def test_a_rank_that_can_not_print_its_stacks_is_ended_so_that_it_does(job: Job) -> None:
    agents = start(
        job,
        2,
        "meet()\nsay(step=3 - rank)\nstuck_in_the_reader() if rank == 1 else wait_for_peers()\n",
        TRAINMASTER_PROGRESS_TIMEOUT="1.5",
    )
    stream = Stream(agents[0])
    found, failed = evidence_before_the_report(stream)
    assert (failed["worker"], failed["reason"], failed["rank"], failed["signal"]) == (1, "Hung", 1, None)
    assert "in stuck_in_the_reader" in failed["error"]
    assert failed["error"].endswith("; all other ranks have done step 3")
    assert "in stuck_in_the_reader" in found[1]["text"]
    assert "Name" not in found[0], "a bystander isn't ended for it"
    assert "sleep" in found[0]["text"], "but the kernel shows where it waits"
    assert stream.until_report("Stopped")["report"]["worker"] == 0
    stream.close()


def test_an_operator_gets_the_stacks_of_all_ranks_while_they_train(job: Job) -> None:
    agents = start(
        job,
        3,
        "kept = register() if rank < 2 else None\n"
        "meet()\n"
        "if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\n"
        "for step in range(1, 10000):\n    say(step=step); time.sleep(0.05)\n",
        TRAINMASTER_PROGRESS_TIMEOUT="60",
    )
    stream = Stream(agents[0])
    stream.until(lambda line: line["type"] == "progress" and line["worker"] == 2)
    assert agents[0].request("POST", "/v1/collect", {"request": ""})[0] == 400
    assert agents[0].request("POST", "/v1/collect", {"request": "mine"})[0] == 204
    found: dict[int, dict[str, Any]] = {}
    while set(found) != {0, 1, 2}:
        line = stream.until(lambda line: line["type"] == "evidence")
        assert line["request"] == "mine"
        found.update({int(rank): data for rank, data in line["ranks"].items()})
    assert "in <module>" in found[0]["text"] and found[0]["step"] > 0
    assert found[1]["state"] == "T", "nobody wakes a process that somebody has stopped"
    # It keeps stepping, so the kernel may show it asleep or running.
    shown = re.search(r"^pid \d+ \S+: [A-Z] \(", found[2]["text"])
    assert shown, "where nothing is registered the signal would kill: the kernel shows the rank"
    seen = max(line["ranks"]["2"]["step"] for line in stream.seen if "2" in line.get("ranks", {}))
    after = stream.until(lambda line: line["type"] == "progress" and line["worker"] == 2)
    assert after["ranks"]["2"]["step"] > seen and after["attempt"] == 1
    assert [agent.report()["state"] for agent in agents] == ["Running"] * 3
    stream.close()


TRAIN = "kept = register()\nfor step in range(1, 10000):\n    say(step=step); time.sleep(0.1)\n"
TRAIN += "    (folder / f'step-{step}-{rank}').touch()\n    if (folder / 'stop').exists(): wait_for_peers()\n"


def processes(agent: Agent) -> list[int]:
    """Returns the agent and every process below it."""
    assert agent.process is not None
    return [agent.process.pid, *children.descendants(agent.process.pid)]


def test_a_leader_that_stands_still_as_a_whole_is_named_by_the_next_one(job: Job) -> None:
    silent = 0
    agents = start(job, 3, TRAIN, TRAINMASTER_PROGRESS_TIMEOUT="1.5")
    stream = Stream(agents[1])
    until(lambda: len(list(job.folder.glob("step-3-*"))) == 3, what="steps")
    children.send(processes(agents[silent]), signal.SIGSTOP)
    (job.folder / "stop").touch()
    found, failed = evidence_before_the_report(stream)
    assert (failed["worker"], failed["reason"]) == (silent, "AgentLost")
    assert failed["exitCode"] is None, "nobody saw it end"
    assert f"no answer from worker {silent}\n" in failed["error"]
    assert "the limit is failurePolicy.hang.progressSeconds 1.5 s" in failed["error"]
    assert sorted(found) == [1, 2], "those who answer say how they stand"
    assert {stream.until_report("Stopped")["report"]["worker"] for _ in range(2)} == {1, 2}
    # It wakes up, joins again, and gets `stop` for its attempt.
    pid = processes(agents[silent])[0]
    children.send(processes(agents[silent]), signal.SIGCONT)
    until(lambda: not children.descendants(pid), what="its rank is stopped")
    stream.close()


def test_a_worker_whose_rank_has_ended_answers_for_none(job: Job) -> None:
    """The worker can't hang, and isn't taken for one that makes no progress."""
    agents = start(
        job,
        2,
        "kept = register()\nsay(step=1)\nif rank == 1: sys.exit(0)\nwait_for_peers()\n",
        TRAINMASTER_PROGRESS_TIMEOUT="1.5",
    )
    stream = Stream(agents[0])
    _, failed = evidence_before_the_report(stream)
    assert (failed["worker"], failed["reason"], failed["rank"]) == (0, "Hung", 0)
    stream.close()


def test_a_long_checkpoint_of_one_rank_is_no_hang_of_those_who_wait_for_it(job: Job, tmp_path: Path) -> None:
    done = tmp_path / "saved"
    agents = start(
        job,
        2,
        f"saved = pathlib.Path({str(done)!r})\n"
        "meet()\nsay(step=1)\n"
        "if rank == 0:\n"
        "    say(step=1, section='checkpoint', sectionSeconds=60); time.sleep(4); saved.touch()\n"
        "while not saved.exists(): time.sleep(0.05)\n",
        TRAINMASTER_PROGRESS_TIMEOUT="1",
    )
    stream = Stream(agents[0])
    asked = stream.until(lambda line: line["type"] == "evidence" or (line.get("report") or {}).get("state") == "Failed")
    assert asked["type"] == "evidence"
    assert {stream.until_report("Finished")["report"]["worker"] for _ in range(2)} == {0, 1}
    assert not [line for line in stream.seen if (line.get("report") or {}).get("state") == "Failed"]
    stream.close()


def test_a_worker_that_no_leader_answers_reports_by_itself(job: Job) -> None:
    agents = start(
        job,
        1,
        "kept = register()\nsay(section='setup')\nstuck_in_the_reader()\n",
        TRAINMASTER_FIRST_STEP_TIMEOUT="1",
        TRAINMASTER_AGENT_PORT="0",
    )
    assert agents[0].exit_code() == 68
    report = agents[0].termination()
    assert (report["reason"], report["rank"]) == ("Hung", 0)
    assert "in stuck_in_the_reader" in report["error"]
    assert "at its first step, section setup; the limit is failurePolicy.hang.firstStepSeconds 1 s" in report["error"]

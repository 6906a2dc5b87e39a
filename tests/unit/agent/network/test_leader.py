"""For every event, the leader decides what to send to followers and operators; these tests need no connection."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.signer import JOB_UID
from tests.unit.agent.network.decisions import Action, Close, Decisions, Deliver, Send, SendToStreams
from trainmaster_operator.agent.connection import json_line
from trainmaster_operator.agent.hang.diagnosis import ANSWER_SECONDS
from trainmaster_operator.agent.network import leader
from trainmaster_operator.agent.network.leader import Leader
from trainmaster_operator.agent.network.workers import (
    HELLO_SECONDS,
    MAX_ARRIVING,
    MAX_OTHERS,
    MAX_PARTS,
    MAX_REPLACED,
    KeptLines,
)
from trainmaster_operator.agent.planner.ranks import CONTINUE_SECONDS
from trainmaster_operator.agent.planner.state import Now
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.joining import (
    Ack,
    Collect,
    Environment,
    Hung,
    Mismatch,
    Modules,
    Reported,
    Resumed,
    Stalled,
    Stop,
    parse_from_follower,
)
from trainmaster_operator.wire.limits import MAX_KEPT_OUTPUT_BYTES, MAX_LINE_BYTES
from trainmaster_operator.wire.ranks import RankProgress, RankState
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.stream import EvidenceLine, OutputLine, ProgressLine

START = 1_000.0
STREAM = 99
SETTINGS: Any = SimpleNamespace(worker=0, pod_uid="uid-0", job_uid=JOB_UID, processes=1, launcher="torchrun")


def at(seconds: float) -> Now:
    return Now(START + seconds, 1.7e9 + seconds)


class Table:
    """Holds the leader of worker 0. Each follower's peer number is ten times its worker's index."""

    def __init__(self, workers: int = 3, attempt: int = 3) -> None:
        self.leader = Decisions(lambda connections: Leader(SETTINGS, START, connections))
        self.now = 0.0
        self.assign(workers, attempt)

    def assign(self, workers: int, attempt: int, uids: bool = True, absent: tuple[int, ...] = ()) -> list[Action]:
        listed = range(workers)
        hosts = tuple(f"job-{worker}.job.ns.svc" for worker in listed)
        named = tuple(f"uid-{worker}" for worker in listed) if uids else None
        assignment = Assignment(JOB_UID, attempt, tuple(listed), named, hosts, 28_000, signed={"attempt": attempt})
        if absent:
            assignment = assignment._replace(continues=1, absent=absent)
        return self.leader.assign(assignment)

    def join(self, worker: int, /, **fields: Any) -> list[Action]:
        self.leader.arrive(worker * 10, at(self.now))
        hello = {"type": "hello", "job": JOB_UID, "worker": worker, "uid": f"uid-{worker}", "seen": 3, **fields}
        return self.say(worker * 10, hello)

    def join_by(self, peer: int, uid: str) -> list[Action]:
        """Lets a pod of worker 1 join by the connection with this number."""
        self.leader.arrive(peer, at(self.now))
        return self.say(peer, {"type": "hello", "job": JOB_UID, "worker": 1, "uid": uid, "seen": 3})

    def say(self, peer: int, line: dict[str, Any]) -> list[Action]:
        return self.leader.receive_line(peer, line, at(self.now))

    def report(self, worker: int, state: str, **fields: Any) -> list[Action]:
        report = failed(worker, state=state, **fields)
        if worker == 0:
            return self.leader.receive(Reported(report), at(self.now))
        return self.say(worker * 10, Reported(report).to_wire())

    def tick(self, seconds: float) -> list[Action]:
        """Lets time pass, and performs due actions on the way."""
        actions: list[Action] = []
        until = self.now + seconds
        while self.leader.deadline <= START + until:
            self.now = self.leader.deadline - START
            actions += self.leader.tick(at(self.now))
        self.now = until
        return actions

    def connected(self) -> list[int]:
        return [line.worker for line in self.leader.workers() if line.connected]


def gathered(actions: list[Action]) -> list[tuple[int, ...]]:
    """Returns the followers of each message that all workers have joined."""
    sent = [action for action in actions if isinstance(action, Send)]
    return [action.peers for action in sent if '"gathered"' in action.data.decode()]


def test_programs_without_a_rendezvous_learn_that_all_workers_have_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SETTINGS, "launcher", "exec")
    table = Table()
    assert gathered(table.join(2)) == []
    assert (gathered(table.join(1)), table.leader.gathered) == ([(20, 10)], 3)
    # A follower whose connection broke learns it again, and the others go on.
    table.leader.leave(10)
    assert table.leader.gathered == 3
    assert gathered(table.join(1)) == [(10,)]
    # All are connected when the next attempt opens, but not after the next one grows.
    assert (gathered(table.assign(3, 4)), table.leader.gathered) == ([(20, 10)], 4)
    assert (gathered(table.assign(4, 5)), table.leader.gathered) == ([], 4)


def failed(worker: int, **fields: Any) -> Report:
    values: dict[str, Any] = {"attempt": 3, "uid": f"uid-{worker}", "state": "Failed", "reason": "Error", **fields}
    return Report(worker=worker, **values)


def lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


def sent(actions: list[Action], kind: type[Send] | type[SendToStreams] = Send) -> dict[str, tuple[int, ...]]:
    """Returns the peers to which each type of line was sent."""
    return {line["type"]: action.peers for action in actions if isinstance(action, kind) for line in lines(action.data)}


def delivered(actions: list[Action]) -> list[Any]:
    return [action.message for action in actions if isinstance(action, Deliver)]


def closed(actions: list[Action]) -> list[int]:
    return [action.peer for action in actions if isinstance(action, Close)]


def stops(actions: list[Action]) -> set[float]:
    """Returns the seconds after which workers are ordered to stop."""
    sent_lines = (line for action in actions if isinstance(action, Send) for line in lines(action.data))
    sent_stops = {line["afterSeconds"] for line in sent_lines if line["type"] == "stop"}
    return sent_stops | {message.after_seconds for message in delivered(actions) if isinstance(message, Stop)}


# Workers that may continue


def able(watched: bool = True, **assigned: Any) -> Table:
    """Returns three workers that can continue, and an operator that watches."""
    table = Table()
    table.assign(3, 3, **assigned)
    table.join(1)
    table.join(2)
    if watched:
        table.leader.watch(STREAM, at(0))
    for worker in range(3):
        table.report(worker, "Running", able=True)
    return table


@pytest.mark.parametrize("worker", [0, 1])
def test_able_workers_get_a_moment_before_they_are_stopped_for_another(worker: int) -> None:
    table = able()
    assert stops(table.report(worker, "Failed")) == {CONTINUE_SECONDS}
    assert stops(table.report(2, "Failed")) == {CONTINUE_SECONDS}, "one has failed too"
    assert stops(table.join_by(11, "uid-1")) == {CONTINUE_SECONDS}
    table = able()
    table.report(0, "Running")
    assert stops(table.report(1, "Failed")) == {0.0}
    table = able(watched=False)
    table.tick(10)
    assert stops(table.report(1, "Failed")) == {0.0}


def test_the_only_worker_gets_a_moment_where_its_other_ranks_can_go_on() -> None:
    table = Table(workers=1)
    table.leader.watch(STREAM, at(0))
    assert stops(table.report(0, "Failed", rank=0, able=True)) == {CONTINUE_SECONDS}
    assert stops(table.report(0, "Failed", rank=0)) == {0.0}


def test_a_continued_attempt_has_able_workers_until_they_say_otherwise() -> None:
    """A second fault may come before any worker has reported in the new attempt."""
    table = Table()
    table.join(1)
    table.join(2)
    table.leader.watch(STREAM, at(0))
    table.assign(3, 3, absent=(0,))
    assert stops(table.report(1, "Failed")) == {CONTINUE_SECONDS}
    table.report(2, "Starting")
    assert stops(table.report(1, "Failed", error="again")) == {0.0}


def test_a_worker_that_has_no_state_yet_keeps_nobody_from_going_on() -> None:
    """Its ranks join with this attempt, and a third worker is lost while the group forms."""
    table = Table(workers=4)
    table.join(1)
    table.join(2)
    table.leader.watch(STREAM, at(0))
    table.assign(4, 3, absent=(3,))
    table.report(0, "Starting", able=True)
    table.report(1, "Starting")
    assert stops(table.report(2, "Failed")) == {CONTINUE_SECONDS}


def test_what_only_waits_to_join_stops_nobody_and_is_not_asked_in_a_stall() -> None:
    table = able(absent=(2,))
    assert stops(table.report(2, "Failed")) == set()
    table.leader.receive(Stalled(3), at(0))
    table.leader.receive(evidence(0), at(0))
    concluded = delivered(table.say(10, evidence(1).to_wire()))
    assert [type(message) for message in concluded] == [Hung], "when all that are in the group have answered"


def test_a_worker_that_does_not_lead_stops_nothing_by_its_own_table() -> None:
    """Its table may contain reports that workers sent before they found their leader."""
    table = Table()
    table.join(2)
    table.leader.watch(STREAM, at(0))
    table.report(2, "Starting")
    assert stops(table.leader.receive(Reported(failed(1)), at(0), leads=False)) == set()
    own = Reported(failed(0, able=True))
    assert stops(table.leader.receive(own, at(0), leads=False)) == set()


# Workers that join


def test_who_joins_is_sent_how_things_stand() -> None:
    table = Table()
    assert sent(table.join(1)) == {"assignment": (10,), "watched": (10,)}
    table.report(0, "Failed", culprit=False)
    table.leader.receive(Stalled(3), at(0))
    assert sent(table.join(2)) == {"assignment": (20,), "watched": (20,), "collect": (20,), "stop": (20,)}
    assert table.connected() == [0, 1, 2]


@pytest.mark.parametrize(
    "hello",
    [
        {"type": "report"},
        {"job": "another"},
        {"worker": "1"},
        {"worker": -1},
        {"uid": 7},
        {"uid": "u" * 65},
        {"worker": 0},
    ],
    ids=str,
)
def test_who_does_not_say_who_it_is_is_sent_away(hello: dict[str, Any]) -> None:
    table = Table()
    assert closed(table.join(1, **hello)) == [10]
    assert table.connected() == [0]
    assert table.join(1, **hello) and table.say(10, {"type": "stalled", "attempt": 3}) == []


def test_a_worker_that_joins_again_is_one_worker() -> None:
    table = Table()
    table.assign(3, 3, uids=False)
    table.join(1)
    assert closed(table.join_by(11, "uid-new")) == [10]
    assert [line.uid for line in table.leader.workers()] == ["uid-0", "uid-new"]
    assert table.leader.leave(10) == [], "its earlier connection says nothing of it any more"
    assert table.connected() == [0, 1]
    assert table.say(10, Reported(failed(1)).to_wire()) == []


def test_a_pod_that_has_given_way_to_a_newer_one_is_not_let_in_again_while_that_is_there() -> None:
    table = Table()
    table.assign(3, 3, uids=False)
    table.join_by(11, "uid-old")
    assert closed(table.join_by(12, "uid-new")) == [11]
    assert closed(table.join_by(13, "uid-old")) == [13]
    assert closed(table.join_by(14, "uid-new")) == [12], "the same pod by a new connection"
    assert closed(table.join_by(15, "uid-old")) == [15]
    table.leader.leave(14)
    assert closed(table.join_by(16, "uid-old")) == []
    assert closed(table.join_by(17, "uid-new")) == [16]
    assert [line.uid for line in table.leader.workers()] == ["uid-0", "uid-new"]


def test_the_pod_that_the_assignment_names_is_preferred() -> None:
    table = Table()
    table.join_by(11, "uid-old")
    assert closed(table.join_by(12, "uid-1")) == [11], "it is the one that is named"
    assert closed(table.join_by(13, "uid-newer")) == [13]
    table.assign(3, 4, uids=False)
    assert closed(table.join_by(14, "uid-newer")) == [12]
    table.assign(3, 5)
    assert closed(table.join_by(15, "uid-1")) == [14], "though it has given way before"


def test_pods_that_have_given_way_are_remembered_to_a_bound() -> None:
    table = Table()
    table.assign(3, 3, uids=False)
    for number in range(MAX_REPLACED + 2):
        table.join_by(11 + number, f"uid-{number}")
    [_, row] = table.leader.workers()
    assert closed(table.join_by(50, f"uid-{MAX_REPLACED}")) == [50]
    assert closed(table.join_by(51, "uid-0")) != [51] and row.uid == f"uid-{MAX_REPLACED + 1}"


def test_who_joins_says_soon_who_it_is() -> None:
    table = Table()
    table.join(1)
    arrived = [table.leader.arrive(peer, at(0)) for peer in range(100, 100 + MAX_ARRIVING + 5)]
    assert [closed(actions) for actions in arrived[-5:]] == [[100], [101], [102], [103], [104]]
    late = closed(table.tick(HELLO_SECONDS + leader.PING_SECONDS))
    assert late == list(range(105, 100 + MAX_ARRIVING + 5)) and table.connected() == [0, 1]


def test_workers_that_the_job_does_not_have_are_few() -> None:
    table = Table()
    for worker in range(1_000, 1_000 + MAX_OTHERS):
        assert not closed(table.join(worker))
    assert closed(table.join(5_000)) == [50_000]
    assert not closed(table.join(1)), "one that the assignment names"
    table.report(1_007, "Waiting")
    table.leader.leave(10_070)
    assert not closed(table.join(5_000))
    assert len(table.leader.workers()) == MAX_OTHERS + 2
    assert "uid-1007" not in json.dumps(stream_of(table))


def test_a_follower_that_falls_silent_is_left() -> None:
    table = Table()
    table.join(1)
    table.join(2)
    gone: list[int] = []
    for _ in range(5):
        gone += closed(table.tick(4.0))
        table.say(20, {"type": "ping"})
    assert gone == [10] and table.connected() == [0, 2]


# Reports


def test_one_failure_stops_all() -> None:
    table = Table()
    table.join(1)
    table.join(2)
    stopped = table.report(1, "Failed")
    assert sent(stopped) == {"stop": (10, 20)}
    assert delivered(stopped) == [Stop(3, 0.4, 0.0, failed(1))]
    assert delivered(table.report(2, "Failed", culprit=False)) == [Stop(3, 0.4, 0.4, failed(2, culprit=False))]
    for harmless in (table.report(2, "Running"), table.report(2, "Failed", attempt=2), table.report(2, "Finished")):
        assert not sent(harmless) and not delivered(harmless)


def test_who_joins_after_a_failure_is_stopped_for_the_culprit() -> None:
    table = Table()
    table.report(0, "Failed", culprit=False)
    table.join(1)
    table.report(1, "Failed")
    (stop,) = [line for action in table.join(2) if isinstance(action, Send) for line in lines(action.data)[-1:]]
    assert (stop["report"]["worker"], stop["afterSeconds"]) == (1, 0.0)


def test_a_follower_speaks_for_itself_only() -> None:
    table = Table()
    table.join(1)
    table.leader.watch(STREAM, at(0))
    assert table.say(10, Reported(failed(2)).to_wire()) == []
    (published,) = [action for action in table.report(1, "Running", uid="zero") if isinstance(action, SendToStreams)]
    assert lines(published.data)[0]["report"]["uid"] == "uid-1"
    progress = ProgressLine(3, 2, {5: RankProgress(step=7)}, 5.0)
    (published,) = [action for action in table.say(10, progress.to_wire()) if isinstance(action, SendToStreams)]
    assert lines(published.data)[0]["worker"] == 1


def test_reports_are_acknowledged_to_who_made_them_once_they_have_ended() -> None:
    table = Table()
    table.join(1)
    table.join(2)
    table.report(0, "Finished")
    table.report(1, "Starting")
    table.report(2, "Failed")
    actions = table.leader.acknowledge(3)
    assert sent(actions) == {"ack": (20,)} and delivered(actions) == [Ack(3)]
    assert sent(table.report(2, "Failed")) == {"ack": (20,)}, "the same one again is only acknowledged again"
    assert sent(table.report(1, "Failed")) == {"stop": (10, 20)}, "a later one isn't acknowledged yet"
    table.leader.leave(20)
    table.join(2, uid="uid-new")
    assert sent(table.leader.acknowledge(9)).get("ack", ()) != (20,), "another pod hasn't reported"


def test_of_a_workers_attempts_the_last_ones_are_kept() -> None:
    table = Table()
    table.join(1)
    for attempt in (5, 3, 4, 2, 6):
        table.report(1, "Running", attempt=attempt)
    reports = [line["report"]["attempt"] for line in stream_of(table) if line["type"] == "report"]
    assert sorted(reports) == [4, 5, 6]
    table.assign(3, 6)
    reports = [line["report"]["attempt"] for line in stream_of(table) if line["type"] == "report"]
    assert sorted(reports) == [5, 6], "the current one and the one before"


# Streams


def stream_of(table: Table) -> list[dict[str, Any]]:
    """Returns the lines that are sent to an operator when it begins to watch."""
    (published,) = [action for action in table.leader.watch(STREAM, at(table.now)) if isinstance(action, SendToStreams)]
    table.leader.unwatch(STREAM, at(table.now))
    assert published.peers == (STREAM,)
    return lines(published.data)


def test_a_large_jobs_hello_keeps_to_lines_that_a_reader_accepts() -> None:
    table = Table(workers=400)
    for worker in range(1, 400):
        table.join(worker, uid="0123456789abcdef-0123456789abcdef-0123")
    (published,) = [action for action in table.leader.watch(STREAM, at(0)) if isinstance(action, SendToStreams)]
    assert all(len(line) < MAX_LINE_BYTES for line in published.data.splitlines())
    hello, *rest = lines(published.data)
    shown = [row["worker"] for row in hello["workers"]] + [line["worker"] for line in rest]
    assert sorted(shown) == list(range(400))


def test_a_ninth_stream_replaces_the_oldest() -> None:
    table = Table()
    opened = [table.leader.watch(peer, at(0)) for peer in range(200, 200 + leader.MAX_STREAMS + 1)]
    assert closed(opened[-1]) == [200]
    assert sent(table.report(0, "Running"), SendToStreams) == {"report": tuple(range(201, 209))}


def test_an_operator_counts_as_watching_from_the_start_and_for_a_blip() -> None:
    table = Table()
    table.join(1)
    assert table.leader.is_watched(START + 2.9) and not table.leader.is_watched(START + 3.1)
    assert sent(table.tick(4.0)) == {"watched": (10,)}
    assert sent(table.leader.watch(STREAM, at(4))) == {"watched": (10,)}
    table.leader.unwatch(STREAM, at(4))
    assert table.leader.is_watched(START + 4.9)
    assert table.leader.deadline == START + 5.0
    assert sent(table.tick(1.0)) == {"ping": (10,), "watched": (10,)}
    assert not table.leader.is_watched(START + 5.1)


# Stalls


def evidence(worker: int, step: int = 5) -> EvidenceLine:
    return EvidenceLine(3, worker, {worker: RankState(step, silent_seconds=9.0, limit_seconds=5.0)}, 5.0)


def test_a_stall_is_asked_about_once_and_the_conclusion_goes_to_all() -> None:
    table = Table()
    table.join(1)
    table.join(2)
    asked = table.say(10, Stalled(3).to_wire())
    assert sent(asked) == {"collect": (10, 20)} and delivered(asked) == [Collect(3, 40_000)]
    assert table.say(20, Stalled(3).to_wire()) == [] == table.say(20, Stalled(2).to_wire())
    assert table.say(10, evidence(1).to_wire()) == [] == table.leader.receive(evidence(0), at(1))
    hung = table.say(20, evidence(2, step=4).to_wire())
    assert sent(hung) == {"hung": (10, 20)}
    (message,) = delivered(hung)
    assert isinstance(message, Hung) and message.rank == 2


def test_an_operators_request_goes_to_all_and_the_answers_to_the_operator_alone() -> None:
    table = Table()
    table.join(1)
    table.join(2)
    table.leader.watch(STREAM, at(0))
    asked = table.leader.collect("mine", at(1))
    assert sent(asked) == {"collect": (10, 20)} and delivered(asked) == [Collect(3, 40_000, "mine")]
    assert table.leader.collect("another", at(1.5)) == [], "so often nobody needs it, and ranks stand still for it"
    answers = [
        *table.say(10, evidence(1)._replace(request="mine").to_wire()),
        *table.leader.receive(evidence(0)._replace(request="mine"), at(1)),
        # If its ranks have ended, that is an answer too.
        *table.say(20, evidence(2)._replace(request="mine", ranks={}).to_wire()),
    ]
    lines = [json.loads(action.data) for action in answers if isinstance(action, SendToStreams)]
    assert [(line["worker"], line["request"]) for line in lines] == [(1, "mine"), (0, "mine"), (2, "mine")]
    assert len(lines) == len(answers), "nobody is named for it"
    later = table.leader.watch(STREAM + 1, at(2))
    assert not any(b"mine" in action.data for action in later if isinstance(action, SendToStreams))


def test_a_worker_that_does_not_answer_is_reported_as_lost_and_its_connection_closed() -> None:
    table = Table()
    table.join(1)
    table.join(2)
    table.tick(1.0)
    table.leader.receive(Stalled(3), at(1))
    table.leader.receive(evidence(0), at(1))
    table.say(10, evidence(1).to_wire())
    lost = table.tick(ANSWER_SECONDS)
    assert closed(lost) == [20] and table.connected() == [0, 1]
    (stop,) = [message for message in delivered(lost) if isinstance(message, Stop)]
    assert stop.report is not None
    assert (stop.report.worker, stop.report.reason, stop.report.exit_code) == (2, "AgentLost", None)
    assert stop.report.uid == "uid-2" and stop.report.error.startswith("no answer from worker 2\n")
    assert sent(table.join(2))["stop"] == (20,), "when it joins again it learns that the attempt is over"


def test_a_worker_that_lives_or_had_come_further_is_not_lost() -> None:
    for alive in ({"type": "ping"}, ProgressLine(3, 2, {2: RankProgress(step=9)}, 5.0).to_wire()):
        table = Table()
        table.join(1)
        table.join(2)
        if alive["type"] == "progress":
            table.say(20, alive)
        table.tick(1.0)
        table.leader.receive(Stalled(3), at(1))
        if alive["type"] == "ping":
            table.say(20, alive)
        table.leader.receive(evidence(0), at(1))
        table.say(10, evidence(1).to_wire())
        (message,) = delivered(table.tick(ANSWER_SECONDS))
        assert isinstance(message, Hung) and message.rank in (0, 1)


def late(worker: int) -> dict[str, Any]:
    state = RankState(5, "train", 9.0, 60.0, quiet_seconds=9.0, notice_seconds=5.0)
    return EvidenceLine(3, worker, {worker: state}, 5.0, notice=True).to_wire()


def stalls(actions: list[Any]) -> list[dict[str, Any]]:
    """Returns the lines about a stall that are sent to the operators."""
    lines = (json.loads(line) for each in actions if isinstance(each, SendToStreams) for line in each.data.splitlines())
    return [line for line in lines if line["type"] == "stall"]


def test_a_learnt_limit_leads_to_a_question_whose_answer_only_goes_to_operators() -> None:
    table = Table()
    table.join(1)
    table.join(2)
    table.leader.watch(STREAM, at(0))
    asked = table.say(10, Stalled(3, notice=True).to_wire())
    assert sent(asked) == {"collect": (10, 20)} and delivered(asked) == [Collect(3, 40_000, notice=True)]
    assert table.say(20, Stalled(3, notice=True).to_wire()) == [] == table.say(20, Stalled(2, notice=True).to_wire())
    # The hang's own question may be asked at the same time.
    assert sent(table.say(10, Stalled(3).to_wire())) == {"collect": (10, 20)}
    assert table.say(10, late(1)) == [] == table.say(20, late(2))
    told = table.leader.receive(parse_from_follower(late(0)), at(1))
    assert sent(told) == {} and delivered(told) == [] and len(told) == 1
    (line,) = stalls(told)
    assert (line["rank"], line["restartSeconds"]) == (0, 60.0)
    assert stalls(table.leader.watch(STREAM + 1, at(2))) == [line], "the next operator learns it too"
    assert table.say(10, Resumed(3).to_wire()) == []
    (ended,) = stalls(table.say(20, Resumed(3).to_wire()))
    assert ended == {"type": "stall", "attempt": 3, "since": 0.0, "restartSeconds": 0.0, "message": ""}
    assert stalls(table.leader.watch(STREAM + 2, at(3))) == []


def test_a_worker_that_does_not_answer_is_named_and_not_dropped() -> None:
    table = Table()
    table.join(1)
    table.join(2)
    table.leader.watch(STREAM, at(0))
    table.tick(1.0)
    table.leader.receive(Stalled(3, notice=True), at(1))
    table.leader.receive(parse_from_follower(late(0)), at(1))
    table.say(10, late(1))
    informed = table.tick(ANSWER_SECONDS)
    assert closed(informed) == [] and table.connected() == [0, 1, 2]
    (line,) = stalls(informed)
    assert "rank" not in line and line["message"].startswith("no answer from worker 2; ")


# Evidence that is kept


def kept_line(worker: int, attempt: int, rank: int, text: str) -> EvidenceLine:
    return EvidenceLine(attempt, worker, {rank: RankState(text=text)})


def test_what_is_kept_of_workers_lines_has_a_bound() -> None:
    line, longer = (kept_line(1, 3, 0, letter * size) for letter, size in (("x", 40), ("y", 300)))
    size, longer_size = (len(json_line(each.to_wire())) for each in (line, longer))
    kept = KeptLines(2 * size + longer_size - size - 1)
    for worker in range(10):
        kept.keep(line._replace(worker=worker))
    fitting = kept.all()
    assert len(fitting) == (size + longer_size - 1) // size
    kept.keep(longer)
    assert kept.all() == [fitting[0], *fitting[2:]], "neither the new one, which doesn't fit, nor the older one"
    data = kept.keep(line._replace(attempt=4))
    kept.forget(lambda worker, attempt: attempt >= 4)
    assert kept.all() == [data]


def test_a_worker_with_many_ranks_has_several_lines_kept_and_no_more_than_it_can_need() -> None:
    kept = KeptLines(100_000)
    first = [kept.keep(kept_line(1, 3, part, "a")) for part in range(MAX_PARTS)]
    new = kept.keep(kept_line(1, 3, 0, "new"))
    assert sorted(kept.all()) == sorted([new, *first[1:]])
    for part in range(1_000):
        kept.keep(kept_line(1, 3, 5_000 + part, "b"))
    assert len(kept.all()) == MAX_PARTS
    following = kept.keep(kept_line(1, 4, 0, "next"))
    assert kept.all() == [following], "those of the attempt before are gone with its first one"


# Environments


def test_workers_whose_environments_differ_are_all_sent_the_lines_once() -> None:
    table = Table(workers=2)
    table.join(1)
    own = Environment(3, {"torch": "2.13", "numpy": "1"})
    assert table.leader.receive(own, at(0)) == []
    assert table.say(10, Environment(2, {"torch": "2.12"}).to_wire()) == [], "of another attempt"
    actions = table.say(10, Environment(3, {"torch": "2.12", "numpy": "2"}).to_wire())
    assert sent(actions) == {"mismatch": (10,)}
    assert delivered(actions) == [Mismatch(3, ("torch differs: 2.13 on worker 0; 2.12 on worker 1",))]
    assert table.leader.receive(own, at(0)) == []


# Modules


def test_the_first_list_of_modules_goes_to_all_and_to_who_joins_later() -> None:
    table = Table()
    table.join(1)
    learned = Modules(("torch._dynamo",))
    assert table.say(10, {"type": "modules", "names": ["not a name", 7]}) == []
    actions = table.say(10, learned.to_wire())
    assert (sent(actions), delivered(actions)) == ({"modules": (10,)}, [learned])
    assert table.leader.receive(Modules(("numpy",)), at(0)) == [], "one list is enough"
    assert sent(table.join(2))["modules"] == (20,)


@pytest.mark.parametrize("moment", ["Infinity", "NaN", "-1", "1e400", "true", '"now"', "9" * 400])
def test_a_time_that_is_none_is_passed_on_to_nobody(moment: str) -> None:
    table = Table()
    table.join(1)
    table.leader.watch(STREAM, at(0))
    line = '{"type":"progress","attempt":3,"worker":1,"ranks":{"1":{"step":1}},"at":%s}'
    assert table.say(10, json.loads(line % moment)) == []
    assert sent(table.say(10, json.loads(line % "5.0")), SendToStreams) == {"progress": (STREAM,)}


def output(worker: int, *lines: str) -> OutputLine:
    return OutputLine(3, worker, f"uid-{worker}", lines, tuple(range(len(lines))))


def outputs(actions: list[Action], to: int) -> list[dict[str, Any]]:
    """Returns the lines of output that are sent to a follower or an operator."""
    found = [action.data for action in actions if isinstance(action, (Send, SendToStreams)) and to in action.peers]
    lines = [json.loads(line) for data in found for line in data.splitlines()]
    return [line for line in lines if line["type"] == "output"]


def test_what_a_worker_printed_last_is_kept_for_operators_and_speaks_for_that_worker_only() -> None:
    table = Table()
    table.join(1)
    said = {**output(2, "saved").to_wire(), "uid": "another"}
    table.say(10, said)
    kept = outputs(table.leader.watch(STREAM, at(1.0)), STREAM)
    assert [(line["worker"], line["uid"], line["lines"]) for line in kept] == [(1, "uid-1", ["saved"])]
    # A new pod of the worker ends too; each worker has one line.
    assert outputs(table.say(10, output(1, "saved again").to_wire()), STREAM)
    assert [line["lines"] for line in outputs(table.leader.watch(98, at(2.0)), 98)] == [["saved again"]]


def test_a_leader_that_ends_hands_what_it_kept_to_the_next_one() -> None:
    table = Table(4)
    for worker in (3, 2):
        table.join(worker)
    table.join(1)
    table.say(10, output(1, "one").to_wire())
    table.leader.leave(10)
    table.leader.receive(output(0, "zero"), at(1.0))
    assert [line["lines"] for line in outputs(table.leader.hand_over(), 20)] == [["one"], ["zero"]]
    heir = Table(4)
    for line in (output(1, "one"), output(0, "zero")):
        heir.leader.keep_output(line)
    assert [line["worker"] for line in outputs(heir.leader.watch(STREAM, at(1.0)), STREAM)] == [1, 0]
    alone = Table(1)
    alone.leader.receive(output(0, "zero"), at(1.0))
    assert alone.leader.hand_over() == []


def test_what_a_leader_keeps_of_output_is_bounded_and_no_worker_takes_more_than_its_share() -> None:
    table = Table(200)
    for worker in range(1, 200):
        table.join(worker)
        table.say(worker * 10, output(worker, "x" * 900).to_wire())
        # A line that would take other workers' room isn't kept, and the worker's earlier line stays.
        table.say(worker * 10, output(worker, "x" * 50_000).to_wire())
    kept = outputs(table.leader.watch(STREAM, at(1.0)), STREAM)
    assert 100 < len(kept) < 150 and kept[-1]["worker"] == 199
    assert sum(len(json.dumps(line)) for line in kept) < MAX_KEPT_OUTPUT_BYTES + 200 * 20
    two = Table(2)
    two.join(1)
    # These characters are longer in JSON than in the message.
    assert two.say(10, {**output(1).to_wire(), "lines": ["\x01" * 30_000], "after": [0]}) == []

"""In random histories of a leader, followers, operators and attempts come and go, and reports come in any order.

In every history, an operator that begins to watch sees the same reports as an operator that has watched all along.
Nothing is sent to a closed connection, no worker reports for another, and the leader's memory is bounded.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.signer import JOB_UID
from tests.unit.agent.network.decisions import Action, Close, Send, SendToStreams
from trainmaster_operator.agent.network.leader import MAX_STREAMS
from trainmaster_operator.agent.network.workers import KEPT_ATTEMPTS
from trainmaster_operator.agent.planner.ranks import CONTINUE_SECONDS
from trainmaster_operator.wire.joining import Reported, Stalled
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.report import STATES, Report
from trainmaster_operator.wire.stream import ProgressLine

from .test_leader import START, Table, at, lines

WORKERS = 4
ALL_ALONG = 5_000
"""The stream belongs to an operator that watches from the beginning."""


class Step(NamedTuple):
    kind: str
    worker: int
    number: int
    text: str


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(
            ["join", "leave", "report", "report", "report", "progress", "stall", "assign", "watch", "unwatch"]
        )
        | st.sampled_from(["wait", "impersonate", "rejoin"]),
        # This is one worker more than the job has.
        st.integers(0, WORKERS),
        st.integers(1, 6),
        st.sampled_from(STATES),
    ),
    min_size=5,
    max_size=80,
)


class History:
    """Holds a leader, the events that it was given, and the lines that it showed."""

    def __init__(self) -> None:
        self.table = Table(workers=WORKERS, attempt=1)
        self.attempt = 1
        self.peers: dict[int, tuple[int, str]] = {}
        """The worker and uid of each connection that has joined and isn't closed."""
        self.streams: list[int] = []
        self.count = 100
        self.reported: dict[tuple[int, int], Report] = {}
        self.shown: dict[tuple[Any, ...], Any] = {}
        """The latest line about each fact, as shown to the operator that watches all along."""
        self.open_stream(ALL_ALONG)
        for worker in range(1, WORKERS):
            self.join(worker, f"uid-{worker}")

    def do(self, step: Step) -> None:
        peer = next((peer for peer, (worker, _) in self.peers.items() if worker == step.worker), None)
        if step.kind in ("join", "rejoin") and step.worker and (peer is None) == (step.kind == "join"):
            self.join(step.worker, f"uid-{step.worker}-{step.number}")
        elif step.kind == "leave" and peer is not None:
            del self.peers[peer]
            self.perform(self.table.leader.leave(peer))
        elif step.kind == "report":
            self.report(step, peer)
        elif step.kind == "progress" and peer is not None:
            progress = ProgressLine(self.attempt, step.worker, {step.worker: RankProgress(step=step.number)}, 5.0)
            self.perform(self.table.say(peer, progress.to_wire()))
        elif step.kind == "impersonate" and peer is not None:
            other = Report(self.attempt, (step.worker + 1) % WORKERS, "uid", "Failed")
            assert self.table.say(peer, Reported(other).to_wire()) == []
        elif step.kind == "stall" and peer is not None:
            self.perform(self.table.say(peer, Stalled(self.attempt).to_wire()))
        elif step.kind == "assign":
            self.attempt += 1
            self.perform(self.table.assign(WORKERS, self.attempt, uids=step.number > 4))
        elif step.kind == "watch":
            self.count += 1
            self.open_stream(self.count)
        elif step.kind == "unwatch" and self.streams[1:]:
            stream = self.streams.pop()
            self.perform(self.table.leader.unwatch(stream, at(self.table.now)))
        elif step.kind == "wait":
            self.perform(self.table.tick(step.number))

    def join(self, worker: int, uid: str) -> None:
        self.count += 1
        peer, now = self.count, at(self.table.now)
        self.perform(self.table.leader.arrive(peer, now))
        hello = {"type": "hello", "job": JOB_UID, "worker": worker, "uid": uid, "seen": 0}
        actions = self.table.leader.receive_line(peer, hello, now)
        self.peers[peer] = worker, uid
        self.perform(actions)

    def report(self, step: Step, peer: int | None) -> None:
        attempt = max(self.attempt + step.number - 3, 1)
        report = Report(attempt, step.worker, "anybody", step.text, culprit=step.number % 2 == 0)  # type: ignore[arg-type]
        report = report._replace(able=step.number < 5)
        if step.worker == 0:
            self.reported[attempt, 0] = report
            self.perform(self.table.leader.receive(Reported(report), at(self.table.now)))
        elif peer is not None:
            self.reported[attempt, step.worker] = report._replace(uid=self.peers[peer][1])
            self.perform(self.table.say(peer, Reported(report).to_wire()))

    def open_stream(self, stream: int) -> None:
        self.streams.append(stream)
        self.perform(self.table.leader.watch(stream, at(self.table.now)))

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                assert action.peers and set(action.peers) <= self.peers.keys()
                for line in lines(action.data):
                    self.check_stop(line)
            elif isinstance(action, SendToStreams):
                assert action.peers and set(action.peers) <= set(self.streams)
                if ALL_ALONG in action.peers:
                    self.shown.update(facts(lines(action.data)))
            elif isinstance(action, Close):
                self.peers.pop(action.peer, None)
                if action.peer in self.streams:
                    self.streams.remove(action.peer)

    def check_stop(self, line: dict[str, Any]) -> None:
        """If a worker has reported that it can't continue, no worker is given time to continue."""
        if line["type"] == "stop" and line["afterSeconds"] == CONTINUE_SECONDS:
            failed = line["report"]["worker"]
            others = self.table.leader._reports.of(self.attempt, set(range(WORKERS)) - {failed})
            assert all(report.able or report.state == "Failed" for report in others)
            assert line["report"].get("able") or any(report.able for report in others)

    def check(self) -> None:
        self.count += 1
        (published,) = [
            action
            for action in self.table.leader.watch(self.count, at(self.table.now))
            if isinstance(action, SendToStreams) and action.peers == (self.count,)
        ]
        fresh = facts(lines(published.data))
        if ALL_ALONG in self.streams:
            assert {key: value for key, value in self.shown.items() if key in fresh} == fresh
        reports = {key[1:]: report for key, report in fresh.items() if key[0] == "report"}
        for key, report in reports.items():
            assert report == self.reported.get(key, Report(0, 0, "", "Failed")).to_wire() or lost(report)
        missing = {key for key in self.reported if key[0] == self.attempt and key[1] < WORKERS} - reports.keys()
        # If a worker has reported in attempts ahead of the leader, the newest of these reports is kept.
        assert all(sum(worker == key[1] for _, worker in reports) >= KEPT_ATTEMPTS for key in missing)
        for worker in range(WORKERS + 1):
            assert sum(key[1] == worker for key in reports) <= KEPT_ATTEMPTS
        connected = {worker for worker, _ in self.peers.values()}
        assert {key[1] for key, row in fresh.items() if key[0] == "worker" and row["connected"]} == connected | {0}
        assert len(self.table.leader._streams) <= MAX_STREAMS
        assert self.table.leader.deadline > START + self.table.now


def lost(report: dict[str, Any]) -> bool:
    """Returns whether the leader itself made a report about a worker that didn't answer in a stall."""
    return report["reason"] == "AgentLost"


def facts(shown: list[dict[str, Any]]) -> dict[tuple[Any, ...], Any]:
    """Returns the facts in a stream's lines, by the worker or report that they are about."""
    found: dict[tuple[Any, ...], Any] = {}
    for line in shown:
        if line["type"] == "hello":
            found.update({("worker", row["worker"]): row for row in line["workers"]})
        elif line["type"] == "worker":
            found["worker", line["worker"]] = {name: value for name, value in line.items() if name != "type"}
        elif line["type"] == "report":
            found["report", line["report"]["attempt"], line["report"]["worker"]] = line["report"]
        elif line["type"] == "progress":
            found["progress", line["worker"]] = line
    return found


@settings(max_examples=200)
@given(STEPS)
def test_a_new_stream_shows_what_was_reported_and_nothing_goes_to_who_is_not_there(steps: list[Step]) -> None:
    history = History()
    for step in steps:
        history.do(step)
    history.check()

"""The follower decides which host to try and when, which leader to follow, and when to leave it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.signer import JOB_UID
from tests.unit.agent.network.decisions import Action, Close, Decisions, Deliver, Send, Try
from trainmaster_operator.agent.network.follower import HURRIED_RETRY_SECONDS, RETRY_SECONDS, Follower
from trainmaster_operator.agent.network.leader import PING_SECONDS, SILENCE_SECONDS
from trainmaster_operator.agent.planner.events import LeaderJoined
from trainmaster_operator.agent.planner.state import MasterContact, Now
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.joining import Ack, Stalled

HOSTS = ("job-0", "job-1", "job-2")


def assignment(
    attempt: int = 3, uids: tuple[str, ...] | None = None, workers: tuple[int, ...] = (0, 1, 2)
) -> Assignment:
    return Assignment(JOB_UID, attempt, workers, uids, tuple(f"job-{worker}" for worker in workers), 28_000)


class Way:
    """Holds a follower, and the connection attempts that it has asked for."""

    def __init__(self, worker: int = 2, may_join: bool = True) -> None:
        self.follower = Decisions(lambda connections: Follower(worker, may_join, 0.0, connections))
        self.now = 0.0
        self.peers = 0

    def assign(self, given: Assignment) -> list[Action]:
        return self.follower.assign(given, self.now)

    def answer(self, host: str, problem: str = "") -> list[Action]:
        """Ends the present connection attempt: it has joined, unless there is a problem."""
        assert self.follower._assignment.hosts[self.follower._trying] == host
        self.peers += not problem
        peer = None if problem else self.peers
        actions = self.follower.tried(peer, True, problem, self.now)
        if not problem:
            assert not self.follower.send(Stalled(3)), "nothing is sent before the introduction"
            self.follower.introduce([])
        return actions

    def say(self, **line: Any) -> list[Action]:
        return self.follower.receive_line(self.peers, line, Now(self.now, 0.0))

    def tick(self, seconds: float) -> list[Action]:
        actions: list[Action] = []
        until = self.now + seconds
        while self.follower.deadline <= until:
            self.now = self.follower.deadline
            actions += self.follower.tick(self.now)
        self.now = until
        return actions


def tried(actions: list[Action]) -> list[str]:
    return [action.host for action in actions if isinstance(action, Try)]


def types(actions: list[Action]) -> list[str]:
    return [
        json.loads(line)["type"] for action in actions if isinstance(action, Send) for line in action.data.splitlines()
    ]


def test_the_first_host_that_answers_is_the_leader() -> None:
    way = Way()
    assert tried(way.assign(assignment())) == ["job-0"]
    assert tried(way.answer("job-0", "refused")) == ["job-1"]
    assert way.follower.leader is None and way.follower.master == MasterContact(False, True, "refused")
    assert list(map(repr, way.answer("job-1"))) == list(map(repr, [Deliver(LeaderJoined())]))
    assert way.follower.leader == 1
    assert way.follower.deadline - way.now == pytest.approx(RETRY_SECONDS[0]), "at a start it is there in a moment"
    assert tried(way.tick(1.0)) == ["job-0"], "the earlier ones are tried again"
    assert tried(way.answer("job-0", "refused")) == [] and tried(way.tick(1.0)) == ["job-0"]
    assert list(map(repr, way.answer("job-0"))) == list(map(repr, [Close(1), Deliver(LeaderJoined())]))
    assert way.follower.leader == 0 and way.follower.master.reached
    assert not tried(way.tick(4.0)), "there is no earlier one"


def test_where_all_before_it_are_lost_it_leads_itself() -> None:
    way = Way()
    way.assign(assignment())
    way.answer("job-0", "refused")
    assert way.answer("job-1", "refused") == [] and way.follower.leader == 2
    waits = []
    for _ in range(8):
        waits.append(way.follower.deadline - way.now)
        assert tried(way.tick(waits[-1])) == ["job-0"]
        way.answer("job-0", "refused")
        way.answer("job-1", "refused")
    assert waits[:6] == pytest.approx(RETRY_SECONDS) and waits[7] <= RETRY_SECONDS[-1]


def test_the_first_worker_leads_and_tries_nobody() -> None:
    way = Way(worker=0)
    assert way.assign(assignment()) == [] and way.follower.leader == 0
    assert way.follower.master == MasterContact(True, True) and not tried(way.tick(60.0))


def test_a_spare_that_takes_the_first_place_leads_though_it_had_joined_another() -> None:
    way = Way(worker=3)
    way.assign(assignment())
    way.answer("job-0", "refused")
    way.answer("job-1")
    assert way.follower.leader == 1
    way.assign(assignment(4, workers=(3, 1, 2)))
    assert way.follower.leader == 3, "job-1 follows it, so nobody else leads"
    way = Way(worker=1)
    way.assign(assignment(4, workers=(0, 2, 1)))
    way.answer("job-0", "refused")
    way.answer("job-2")
    assert tried(way.assign(assignment(5, workers=(3, 1, 2)))) == ["job-3"]
    way.answer("job-3", "refused")
    assert way.follower.leader == 1


def test_who_is_not_assigned_never_leads() -> None:
    way = Way(worker=7)
    way.assign(assignment())
    for host in HOSTS:
        way.answer(host, "refused")
    assert way.follower.leader is None


def test_without_a_port_or_a_secret_it_joins_nobody() -> None:
    way = Way(may_join=False)
    assert way.assign(assignment()) == []
    assert way.follower.leader == 2 and way.follower.master.reached


def test_an_attempt_that_waits_for_the_first_host_hurries() -> None:
    way = Way(worker=1)
    way.assign(assignment())
    for _ in range(8):
        way.answer("job-0", "refused")
        way.tick(way.follower.deadline - way.now)
    way.answer("job-0", "refused")
    assert tried(way.follower.hurry(way.now)) == ["job-0"]
    way.answer("job-0", "refused")
    assert way.follower.deadline - way.now == pytest.approx(HURRIED_RETRY_SECONDS)


def test_a_leader_that_falls_silent_is_left() -> None:
    way = Way(worker=1)
    way.assign(assignment())
    way.answer("job-0")
    way.say(type="watched", value=True)
    assert way.follower.watched
    assert types(way.tick(PING_SECONDS)) == ["ping"]
    assert way.say(type="ping") == []
    left = way.tick(SILENCE_SECONDS + PING_SECONDS + 0.1)
    assert Close(1) in left and tried(left) == ["job-0"]
    assert not way.follower.watched and way.follower.leader is None
    way.answer("job-0", "refused")
    assert way.follower.leader == 1


def test_a_connection_that_ends_is_joined_again() -> None:
    way = Way(worker=1)
    way.assign(assignment())
    way.answer("job-0")
    way.say(type="watched", value=False, uid="uid-0")
    assert tried(way.follower.closed(1, 1.0)) == ["job-0"]
    assert list(map(repr, way.answer("job-0"))) == list(map(repr, [Deliver(LeaderJoined())]))
    assert way.follower.closed(1, 2.0) == [], "it is another one by now"


def test_a_leader_that_does_not_let_it_in_is_tried_again_ever_later() -> None:
    way = Way(worker=1)
    way.assign(assignment())
    waits = []
    for _ in range(8):
        way.answer("job-0")
        assert tried(way.follower.closed(way.peers, way.now)) == [] and way.follower.leader is None
        waits.append(way.follower.deadline - way.now)
        assert tried(way.tick(waits[-1])) == ["job-0"]
    assert waits[:6] == pytest.approx(RETRY_SECONDS) and waits[7] <= RETRY_SECONDS[-1]
    way.answer("job-0")
    way.say(type="ping")
    assert tried(way.follower.closed(way.peers, way.now)) == ["job-0"], "it was let in meanwhile"


def test_a_leader_that_does_not_answer_is_left_on_request() -> None:
    way = Way()
    way.assign(assignment())
    assert way.follower.abandon(0.0) == [], "none is joined"
    way.answer("job-0")
    assert [type(action) for action in way.follower.abandon(0.0)] == [Close, Try]


def test_what_the_leader_says_is_delivered_and_nonsense_passed_over() -> None:
    way = Way(worker=1)
    way.assign(assignment())
    assert way.say(type="ack", attempt=3) == [], "nobody is joined"
    way.answer("job-0")
    assert way.say(type="ack", attempt=3) == [Deliver(Ack(3))]
    for line in ({}, {"type": "ack"}, {"type": "ack", "attempt": -1}, {"type": "new"}, {"type": ["ack"]}):
        assert way.say(**line) == []
    assert types(way.follower.send(Stalled(3))) == ["stalled"]


def test_a_new_assignment_is_confirmed_and_the_leader_kept_while_it_is_the_first_choice() -> None:
    way = Way(worker=1)
    way.assign(assignment())
    way.answer("job-0")
    assert types(way.assign(assignment(4))) == ["seen"] and way.follower.leader == 0
    left = way.assign(assignment(5, workers=(1, 2)))
    assert Close(1) in left and way.follower.leader == 1, "worker 0 takes no part any more"


def test_tries_that_were_given_up_lead_nowhere() -> None:
    way = Way()
    way.assign(assignment())
    assert list(map(repr, way.assign(assignment(4, workers=(1, 2))))) == ["Try(host='')", "Try(host='job-1')"]
    assert (
        list(map(repr, way.answer("job-1"))) == list(map(repr, [Deliver(LeaderJoined())])) and way.follower.leader == 1
    )


def test_a_leader_whose_worker_has_a_new_pod_is_left_for_that_pod() -> None:
    """The old pod may be alive on a node that can't be reached, and would take reports that nobody reads."""
    way = Way(worker=1)
    way.assign(assignment())
    way.answer("job-0")
    way.say(type="watched", value=True, uid="old")
    left = way.assign(assignment(4, uids=("new", "mine", "third")))
    assert Close(1) in left and tried(left) == ["job-0"] and way.follower.leader is None
    # The name still leads to the old pod, so the follower leaves it again, and tries again after a while.
    way.answer("job-0")
    assert way.say(type="watched", value=True, uid="old") == [Close(2)]
    assert not tried(way.tick(0.9)) and tried(way.tick(0.2)) == ["job-0"]
    way.answer("job-0")
    assert way.say(type="watched", value=True, uid="new") == []
    assert way.follower.leader == 0 and way.follower.watched

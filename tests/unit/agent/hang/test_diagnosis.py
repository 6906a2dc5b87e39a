"""A stalled worker acts on its leader's conclusion, then on the next leader's, and finally on its own."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster_operator.agent.connection import json_line
from trainmaster_operator.agent.hang.diagnosis import (
    ALONE_SECONDS,
    ANSWER_SECONDS,
    REJOIN_SECONDS,
    CollectEvidence,
    Diagnosis,
    FailHung,
    LeaveLeader,
    SilentWorkers,
    Stall,
    StallAction,
)
from trainmaster_operator.agent.planner.actions import SendToLeader
from trainmaster_operator.agent.planner.state import Now
from trainmaster_operator.wire.joining import Collect, Hung, Patience, Stalled
from trainmaster_operator.wire.limits import MAX_LINE_BYTES
from trainmaster_operator.wire.ranks import RankState
from trainmaster_operator.wire.stream import EvidenceLine, split

LATE = RankState(5, silent_seconds=9.0, limit_seconds=5.0, limit="progressSeconds")
JOINED, LEADS, NOBODY = 0, 1, None
STALLED = SendToLeader(Stalled(3))
MESSAGE = "rank 2 made no progress for 9 s at step 5; the limit is progressSeconds 5 s"


@pytest.fixture
def stall() -> Stall:
    """Returns a stall of worker 1 in attempt 3, with the ranks 2 and 3."""
    return Stall(3, 1, range(2, 4))


def shown(actions: list[StallAction]) -> list[str]:
    """Returns actions by name and fields: tuples without fields are equal, whatever they mean."""
    return [repr(action) for action in actions]


def begin(stall: Stall, leader: int | None, now: float = 100.0) -> None:
    assert shown(stall.observe([RankState(6), LATE], leader, now)) == shown([STALLED, CollectEvidence()])
    assert stall.observe([LATE], leader, now + 1.0) == [], "it is being diagnosed"
    assert stall.deadline == now + ALONE_SECONDS


def collected(stall: Stall, *, steady: float) -> list[object]:
    return list(stall.collected({2: LATE, 3: RankState(6)}, Now(steady, 1_700.0)))


EVIDENCE = SendToLeader(EvidenceLine(3, 1, {2: LATE, 3: RankState(6)}, 1_700.0))


def test_no_rank_over_its_limit_is_no_stall(stall: Stall) -> None:
    assert stall.observe([RankState(5), LATE._replace(silent_seconds=5.0)], JOINED, 100.0) == []
    assert stall.tick(JOINED, 1e9) == []


def test_the_leader_names_this_workers_rank(stall: Stall) -> None:
    begin(stall, JOINED)
    assert collected(stall, steady=101.0) == [EVIDENCE]
    assert stall.receive(Hung(3, 2, "it is rank 2"), 102.0) == [FailHung(2, "it is rank 2")]
    assert stall.tick(JOINED, 1e9) == []


def test_another_workers_rank_is_not_reported_here(stall: Stall) -> None:
    begin(stall, JOINED)
    assert stall.receive(Hung(3, 4, "it is rank 4"), 102.0) == []


def test_what_this_worker_never_observed_it_does_not_report(stall: Stall) -> None:
    assert stall.receive(Hung(3, 2, "it is rank 2"), 102.0) == []


def test_the_leader_asks_on_behalf_of_another_worker(stall: Stall) -> None:
    assert shown(stall.receive(Collect(3, 1_000), 100.0)) == shown([CollectEvidence()])
    assert stall.receive(Collect(3, 1_000), 100.5) == [], "it is being collected"
    assert collected(stall, steady=101.0) == [EVIDENCE]
    assert shown(stall.receive(Collect(3, 1_000), 105.0)) == shown([CollectEvidence()]), (
        "asked again, so collected again"
    )


def test_somebody_at_something_long_gives_all_the_time(stall: Stall) -> None:
    begin(stall, JOINED)
    assert stall.receive(Patience(3, 45.0), 103.0) == []
    assert stall.observe([LATE], JOINED, 147.9) == []
    begin(stall, JOINED, 148.1)


def test_a_leader_that_does_not_answer_is_left_once_and_then_this_worker_judges(stall: Stall) -> None:
    begin(stall, JOINED)
    collected(stall, steady=101.0)
    assert stall.tick(JOINED, 99.9 + ALONE_SECONDS) == []
    assert shown(stall.tick(JOINED, 100.0 + ALONE_SECONDS)) == shown([LeaveLeader()])
    assert stall.tick(JOINED, 100.0 + ALONE_SECONDS + REJOIN_SECONDS) == [STALLED]
    assert stall.tick(JOINED, 102.0 + 2 * ALONE_SECONDS) == [FailHung(2, MESSAGE)]


def test_a_leader_that_has_answered_is_not_left(stall: Stall) -> None:
    begin(stall, JOINED)
    stall.receive(Collect(3, 1_000), 100.1)
    collected(stall, steady=101.0)
    assert [type(action) for action in stall.tick(JOINED, 100.0 + ALONE_SECONDS)] == [FailHung]


def test_a_worker_that_leads_itself_judges_when_its_own_diagnosis_does_not_end(stall: Stall) -> None:
    begin(stall, LEADS)
    collected(stall, steady=101.0)
    assert [type(action) for action in stall.tick(LEADS, 100.0 + ALONE_SECONDS)] == [FailHung]


def test_without_a_leader_it_judges_as_soon_as_it_knows(stall: Stall) -> None:
    begin(stall, NOBODY)
    evidence, failed = collected(stall, steady=101.5)
    assert evidence == EVIDENCE and isinstance(failed, FailHung)


def test_evidence_of_many_ranks_keeps_to_lines_and_to_its_bytes(stall: Stall) -> None:
    ranks = {rank: LATE._replace(text="\n\u00e9" * 9_000) for rank in range(1_000)}
    lines = split(stall.evidence_line(ranks, 1.0))
    assert sorted(rank for line in lines for rank in line.ranks) == list(range(1_000)), "none is left out"
    one = stall.evidence_line({0: ranks[0]}, 1.0)
    sizes = [len(json_line(line.to_wire())) for line in (*lines, one, stall.evidence_line({}, 1.0))]
    assert max(sizes) <= MAX_LINE_BYTES and sizes[-2] > 30_000


WORKERS = frozenset(range(3))
PATIENT = RankState(0, silent_seconds=9.0, limit_seconds=60.0, limit="firstStepSeconds", patient=True)
NAMED = "rank 0 made no progress for 9 s at step 5; the limit is progressSeconds 5 s"


def late(step: int, **fields: Any) -> RankState:
    return RankState(step, silent_seconds=9.0, limit_seconds=5.0, limit="progressSeconds", **fields)


def answer(worker: int, *states: RankState, first: int | None = None, more: bool = False) -> EvidenceLine:
    start = worker if first is None else first
    return EvidenceLine(3, worker, dict(enumerate(states, start)), 1.0, more)


@pytest.mark.parametrize(
    ("answers", "steps", "concluded"),
    [
        # Worker 1's step is unknown, or the same as the step of those that wait for it.
        ({0: late(5), 2: late(5)}, {1: -1}, (1,)),
        ({0: late(5), 2: late(6)}, {1: 5}, (1,)),
        ({0: late(5)}, {1: 4, 2: 5}, (1, 2)),
        # Worker 1 was ahead, so one of those that answer is at fault.
        ({0: late(5), 2: late(6)}, {1: 6}, 0),
        # Worker 1 is alive, and only slow to find out.
        ({0: late(5), 2: late(6)}, {1: None}, 0),
        # A rank that was stopped is a sufficient explanation.
        ({0: late(5), 2: late(6, state="T")}, {1: -1}, 2),
        ({0: late(5), 2: PATIENT}, {1: -1}, 51.0),
        ({0: late(5), 1: late(5), 2: late(6)}, {}, 0),
        # No rank is over its limit any more.
        ({0: RankState(5), 2: RankState(5)}, {1: -1}, None),
    ],
)
def test_who_is_named(
    answers: dict[int, RankState], steps: dict[int, int | None], concluded: int | float | tuple[int, ...] | None
) -> None:
    diagnosis = Diagnosis()
    assert diagnosis.begin(3, 3, 100.0) == diagnosis.question == Collect(3, 40_000)
    assert diagnosis.deadline == 100.0 + ANSWER_SECONDS
    for worker, state in answers.items():
        diagnosis.add(worker, answer(worker, state))
    assert diagnosis.unanswered(WORKERS) == steps.keys()
    conclusion = diagnosis.conclude(steps)
    assert diagnosis.question is None and diagnosis.deadline == float("inf")
    if isinstance(concluded, tuple):
        assert isinstance(conclusion, SilentWorkers) and conclusion.workers == concluded
        assert conclusion.message.startswith(f"no answer from worker {', '.join(map(str, concluded))}\n{NAMED}")
    elif isinstance(concluded, float):
        assert conclusion == Patience(3, concluded)
    elif concluded is None:
        assert conclusion is None
    else:
        assert isinstance(conclusion, Hung) and conclusion.rank == concluded


def test_an_attempt_is_asked_about_once_at_a_time() -> None:
    diagnosis = Diagnosis()
    diagnosis.begin(3, 3, 100.0)
    assert diagnosis.begin(3, 3, 101.0) is None, "it is being asked about already"
    diagnosis.add(0, answer(0, late(5)))
    assert diagnosis.begin(4, 1_000, 102.0) == Collect(4, 4_194), "a later attempt, with room for all its workers"
    diagnosis.add(0, answer(0, late(5)))
    assert diagnosis.unanswered(frozenset({0})) == {0}, "an answer to an earlier question"


def test_a_worker_with_many_ranks_has_answered_with_its_last_line() -> None:
    diagnosis = Diagnosis()
    diagnosis.begin(3, 1, 100.0)
    diagnosis.add(0, answer(0, late(7), late(6), more=True))
    assert diagnosis.unanswered(frozenset({0})) == {0}
    diagnosis.add(0, answer(0, late(5), first=2))
    assert not diagnosis.unanswered(frozenset({0}))
    conclusion = diagnosis.conclude({})
    assert isinstance(conclusion, Hung) and conclusion.rank == 2


def test_nobody_answers_for_another_workers_ranks() -> None:
    diagnosis = Diagnosis()
    diagnosis.begin(3, 2, 100.0)
    diagnosis.add(1, answer(1, late(6)))
    diagnosis.add(0, answer(0, late(5), late(0, state="T")))
    conclusion = diagnosis.conclude({})
    assert isinstance(conclusion, Hung) and conclusion.rank == 0

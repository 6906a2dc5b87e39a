"""A leader names the silent workers when not all answer, unless something speaks for them."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster_operator.agent.hang.diagnosis import ANSWER_SECONDS, Diagnosis, Silent
from trainmaster_operator.wire.joining import Collect, Hung, Patience
from trainmaster_operator.wire.ranks import RankState
from trainmaster_operator.wire.stream import EvidenceLine

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
        # Nothing is known of worker 1; or no more than of those that wait for it.
        ({0: late(5), 2: late(5)}, {1: -1}, (1,)),
        ({0: late(5), 2: late(6)}, {1: 5}, (1,)),
        ({0: late(5)}, {1: 4, 2: 5}, (1, 2)),
        # It had come further: somebody who answers is the one.
        ({0: late(5), 2: late(6)}, {1: 6}, 0),
        # It lives, and is only slow to find out.
        ({0: late(5), 2: late(6)}, {1: None}, 0),
        # A stopped rank explains everything.
        ({0: late(5), 2: late(6, state="T")}, {1: -1}, 2),
        ({0: late(5), 2: PATIENT}, {1: -1}, 51.0),
        ({0: late(5), 1: late(5), 2: late(6)}, {}, 0),
        # Nobody is over its limit any more.
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
        assert isinstance(conclusion, Silent) and conclusion.workers == concluded
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

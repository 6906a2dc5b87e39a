"""People are informed in a silence that is unusual for the job, once, and are informed when it is over."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster_operator.agent.hang.diagnosis import (
    LATE_SECONDS,
    MAX_HARMLESS_SECONDS,
    NOTICE_AGAIN_SECONDS,
    Notices,
    Stall,
)
from trainmaster_operator.agent.hang.hung_rank import ACTIVE_AGAIN_SECONDS, as_notice, classify_stall
from trainmaster_operator.agent.planner.actions import SendToLeader
from trainmaster_operator.agent.planner.state import Now
from trainmaster_operator.wire.joining import Collect, Resumed, Stalled
from trainmaster_operator.wire.limits import MAX_STALL_CHARACTERS
from trainmaster_operator.wire.ranks import WAITS, RankState
from trainmaster_operator.wire.stream import EvidenceLine, StallLine

COLLECTIVE, DEVICE, NOTHING = WAITS


def quiet(seconds: float = 6.0, **fields: Any) -> RankState:
    """Returns the state of a rank that has done step 7, and whose silences are 5 s at most."""
    state = RankState(7, "train", seconds, 60.0, "learnt from this job:", quiet_seconds=seconds, notice_seconds=5.0)
    return state._replace(usual_seconds=0.05)._replace(**fields)


def waiting(operation: str = "all_reduce", line: int = 52, **fields: Any) -> RankState:
    return quiet(waits=COLLECTIVE, operation=operation, place=f"train.py:{line} in step: `x`", **fields)


QUEUE = quiet(waits=NOTHING, place="train.py:41 in load: `x = queue.get()`")
AT = "rank 1 is at train.py:41 in load: `x = queue.get()`"


@pytest.mark.parametrize(
    ("ranks", "sentence"),
    [
        ([waiting(), QUEUE], f"{AT}; rank 0 waits in all_reduce (train.py:52)"),
        ([waiting(), QUEUE, waiting()], f"{AT}; all other ranks wait in all_reduce (train.py:52)"),
        (
            [waiting(), QUEUE, waiting("broadcast", 9), waiting()],
            f"{AT}; ranks 0, 3 wait in all_reduce (train.py:52); rank 2 waits in broadcast (train.py:9)",
        ),
        ([RankState(), QUEUE], AT),
        ([quiet(), QUEUE._replace(waits=DEVICE)], f"{AT} and waits for its device"),
        (
            [waiting(), quiet(state="T")],
            "rank 1 is stopped by a signal (state T); rank 0 waits in all_reduce (train.py:52)",
        ),
        # Ranks in different collectives: with three ranks the one that is alone, with two the lower one.
        (
            [waiting(), waiting("broadcast", 60), waiting()],
            "rank 1 waits in broadcast at train.py:60 in step: `x`; all other ranks wait in all_reduce (train.py:52) "
            "(these collectives don't match)",
        ),
        (
            [waiting(), waiting("broadcast", 60)],
            "rank 0 waits in all_reduce at train.py:52 in step: `x`; rank 1 waits in broadcast (train.py:60) "
            "(these collectives don't match)",
        ),
        (
            [waiting(), waiting(line=90)],
            "rank 0 waits in all_reduce at train.py:52 in step: `x`; rank 1 waits in all_reduce (train.py:90)",
        ),
        ([waiting(step=8), waiting(step=8), QUEUE._replace(step=3)], "rank 2 is at train.py:41 in load: `x = queue"),
        ([quiet(step=8), quiet(step=6)], "rank 1 made no progress at step 6, section train; all other ranks have done"),
        ([quiet(), quiet(7.0)], "rank 1 made no progress at step 7, section train"),
    ],
)
def test_the_sentence_begins_with_the_rank_and_its_line(ranks: list[RankState], sentence: str) -> None:
    found = classify_stall({rank: as_notice(state) for rank, state in enumerate(ranks)})
    assert found is not None and found.sentence.startswith(sentence)
    if sentence.endswith(")"):
        assert found.sentence == sentence


def test_the_message_of_a_hang_begins_in_the_same_way() -> None:
    hung = quiet(61.0)
    found = classify_stall({0: waiting(silent_seconds=61.0), 1: QUEUE._replace(silent_seconds=61.0)})
    assert found is not None and found.message == (
        f"{AT}; rank 0 waits in all_reduce (train.py:52); it made no progress for 61 s at step 7, section train; "
        "the limit is learnt from this job: 60 s"
    )
    only = classify_stall({0: hung})
    assert only is not None and only.message.startswith("rank 0 made no progress for 61 s at step 7")


def classified(*ranks: RankState) -> float:
    found = classify_stall({rank: as_notice(state) for rank, state in enumerate(ranks)})
    assert found is not None
    return found.patience


def test_nobody_is_informed_while_the_rank_that_others_wait_for_is_active() -> None:
    """Rank 1 evaluates, and the script names no sections."""
    assert classified(waiting(), QUEUE._replace(active=True)) == ACTIVE_AGAIN_SECONDS
    assert classified(waiting(quiet_seconds=100.0), QUEUE._replace(active=True, quiet_seconds=100.0)) == 50.0
    assert classified(waiting(active=True), QUEUE) == 0.0, "a thread in the background of a rank that waits"
    late = QUEUE._replace(active=True, quiet_seconds=601.0)
    assert classified(waiting(quiet_seconds=601.0), late) == 0.0, "a loop without end"
    assert classified(waiting(), RankState(active=True, waits=NOTHING)) > 0, "one that reports nothing"


def test_an_active_rank_is_not_restarted_by_a_learnt_limit_and_is_by_a_set_one() -> None:
    ranks = {0: waiting(silent_seconds=61.0), 1: QUEUE._replace(silent_seconds=61.0, active=True)}
    found = classify_stall(ranks)
    assert found is not None and found.patience == 30.5
    limited = {rank: state._replace(limit="failurePolicy.hang.progressSeconds") for rank, state in ranks.items()}
    found = classify_stall(limited)
    assert found is not None and (found.rank, found.patience) == (1, 0.0)


def test_a_rank_within_its_own_limit_is_waited_for() -> None:
    saving = quiet(6.0, section="checkpoint", notice_seconds=120.0)
    assert classified(waiting(), saving) == 114.0
    assert classified(waiting(), saving._replace(step=8)) == 0.0, "it doesn't wait for rank 1"


def test_what_other_workers_have_learnt_bounds_the_first_step_in_a_new_pod() -> None:
    learnt = quiet(61.0, step=None, section="setup", patient=True)
    new = learnt._replace(
        limit="failurePolicy.hang.firstStepSeconds", limit_seconds=1_800.0, place="train.py:3 in load"
    )
    found = classify_stall({0: learnt._replace(waits=COLLECTIVE), 1: new._replace(waits=NOTHING)})
    assert found is not None and (found.rank, found.patience) == (1, 0.0)
    alone = classify_stall({0: quiet(61.0, step=9), 1: new})
    assert alone is not None and alone.patience == 1_739.0, "rank 0 isn't at its first step"


# A worker


def sent(stall: Stall, now: float, *states: RankState) -> list[object]:
    actions = stall.notice(states, now)
    assert all(isinstance(action, SendToLeader) for action in actions)
    return [action.message for action in actions if isinstance(action, SendToLeader)]


def test_a_worker_repeats_that_it_is_late_and_reports_the_end_once() -> None:
    stall = Stall(3, 1, range(2, 4))
    assert sent(stall, 100.0, quiet(4.0), RankState()) == []
    assert sent(stall, 101.0, quiet(6.0)) == [Stalled(3, notice=True)]
    assert sent(stall, 102.0, quiet(6.0)) == []
    assert sent(stall, 101.0 + NOTICE_AGAIN_SECONDS, quiet(9.0)) == [Stalled(3, notice=True)]
    assert sent(stall, 105.0, quiet(0.1)) == [Resumed(3)]
    assert sent(stall, 105.1, quiet(0.1)) == []


def test_a_worker_does_not_report_its_own_active_rank() -> None:
    stall = Stall(3, 1, range(2, 4))
    assert sent(stall, 101.0, quiet(active=True)) == []
    assert sent(stall, 102.0, quiet()) == [Stalled(3, notice=True)]
    assert sent(stall, 103.0, quiet(active=True)) == [], "it still makes no progress"


# The leader


class Leader:
    """Asks the workers 0 and 1, with one rank each."""

    def __init__(self) -> None:
        self.notices = Notices()

    def stalled(self, now: float, worker: int = 0) -> bool:
        return self.notices.stalled(worker, 3, 2, now) is not None

    def conclude(self, now: float, *states: RankState, silent: tuple[int, ...] = ()) -> StallLine | None:
        for worker, state in enumerate(states):
            self.notices.diagnosis.add(worker, EvidenceLine(3, worker, {worker: state}, notice=True))
        return self.notices.conclude(silent, Now(now, 1_000.0 + now))

    def resumed(self, now: float, worker: int | None = 0) -> StallLine | None:
        return self.notices.resumed(worker, Now(now, 1_000.0 + now))


def test_people_are_informed_once_and_when_it_is_over() -> None:
    leader = Leader()
    assert leader.notices.stalled(0, 3, 2, 100.0) == Collect(3, 40_000, notice=True)
    assert not leader.stalled(100.1, worker=1), "it is being asked about"
    line = leader.conclude(101.0, waiting(), QUEUE)
    assert line == StallLine(3, 1_095.0, 1, "train", 0.05, 60.0, f"{AT}; rank 0 waits in all_reduce (train.py:52)")
    assert not leader.stalled(103.0), "people know it"
    assert leader.resumed(104.0) is None, "worker 1 is still late"
    assert leader.resumed(104.0, worker=1) == StallLine(3)
    assert leader.resumed(105.0, worker=1) is None


def test_a_silence_that_was_harmless_is_so_twice_as_long() -> None:
    leader = Leader()
    leader.stalled(100.0)
    assert leader.conclude(101.0, waiting(), QUEUE) is not None
    assert leader.resumed(105.0) == StallLine(3)
    leader.stalled(200.0)
    assert leader.conclude(201.0, waiting(), QUEUE) is None
    assert not leader.stalled(214.0) and leader.stalled(216.0)
    assert leader.conclude(216.0, waiting(quiet_seconds=21.0), QUEUE._replace(quiet_seconds=21.0)) is not None
    leader.resumed(5_000.0)
    leader.stalled(6_000.0)
    assert (
        leader.conclude(6_000.0, waiting(quiet_seconds=MAX_HARMLESS_SECONDS), quiet(MAX_HARMLESS_SECONDS + 1))
        is not None
    )


def test_a_patient_conclusion_is_not_asked_about_again_at_once() -> None:
    leader = Leader()
    leader.stalled(100.0)
    assert leader.conclude(101.0, waiting(), QUEUE._replace(active=True)) is None
    assert not leader.stalled(101.0 + ACTIVE_AGAIN_SECONDS - 1) and leader.stalled(101.0 + ACTIVE_AGAIN_SECONDS)


def test_ranks_that_have_made_progress_meanwhile_are_no_stall() -> None:
    leader = Leader()
    leader.stalled(100.0)
    assert leader.conclude(101.0, quiet(0.1), quiet(0.1)) is None
    leader.stalled(110.0)
    leader.resumed(110.5)
    assert leader.conclude(111.0, waiting(), QUEUE) is None, "the worker's end of the silence came first"


def test_a_worker_that_reports_nothing_more_is_not_late_any_more() -> None:
    leader = Leader()
    leader.stalled(100.0)
    assert leader.conclude(101.0, waiting(), QUEUE) is not None
    assert leader.resumed(100.0 + LATE_SECONDS - 1, None) is None
    assert leader.resumed(100.0 + LATE_SECONDS, None) == StallLine(3)


def test_a_worker_that_does_not_answer_is_named() -> None:
    leader = Leader()
    leader.stalled(100.0)
    line = leader.conclude(104.0, waiting(quiet_seconds=9.0), silent=(1,))
    assert line is not None and line.rank is None
    assert line.message.startswith("no answer from worker 1; rank 0 waits in all_reduce at train.py:52")


def test_a_message_is_short_and_an_unlimited_rank_is_never_restarted() -> None:
    leader = Leader()
    leader.stalled(100.0)
    long = QUEUE._replace(place="x" * 2_000, limit_seconds=0.0)
    line = leader.conclude(101.0, waiting(limit_seconds=0.0), long)
    assert line is not None and len(line.message) == MAX_STALL_CHARACTERS and line.restart_seconds == 0.0


def test_a_new_attempt_begins_without_a_stall() -> None:
    leader = Leader()
    leader.stalled(100.0)
    leader.conclude(101.0, waiting(), QUEUE)
    leader.notices.close()
    assert leader.notices.line is None and leader.resumed(102.0) is None

"""Which rank of a stalled job is named: of all that are known the one that stopped first."""

from __future__ import annotations

from typing import Any

import pytest

from tests.signer import environment
from trainmaster.agent.hang.rank_states import classify_stall, is_over, observe_rank, waits_in_collective
from trainmaster.agent.settings import read_settings
from trainmaster.wire.evidence import RankState
from trainmaster.wire.progress import RankProgress

SETTINGS = read_settings(
    {
        **environment(),
        "TRAINMASTER_WORKER": "0",
        "TRAINMASTER_PROGRESS_TIMEOUT": "10",
        "TRAINMASTER_FIRST_STEP_TIMEOUT": "100",
    }
)


@pytest.mark.parametrize(
    ("progress", "silent", "over"),
    [
        (RankProgress(step=3), 11, True),
        (RankProgress(step=3), 9, False),
        (RankProgress(section="setup"), 99, False),
        (RankProgress(section="setup"), 101, True),
        (RankProgress(step=3, section="checkpoint", section_seconds=50), 49, False),
        (RankProgress(step=3, section="checkpoint", section_seconds=50), 51, True),
        # Ranks that never write aren't watched.
        (None, 1e6, False),
    ],
)
def test_a_stall_has_the_limit_of_what_the_rank_is_at(progress: RankProgress | None, silent: float, over: bool) -> None:
    late = observe_rank(SETTINGS, progress, silent)
    assert is_over(late) is over
    found = classify_stall({0: observe_rank(SETTINGS, RankProgress(step=3), 0.0), 1: late})
    assert (found is not None and found.rank == 1) is over


def at(silent: float = 20.0, **fields: Any) -> RankState:
    """A rank that has done step 7 and may be silent for 10 s."""
    return RankState(
        **{"step": 7, "silent_seconds": silent, "limit_seconds": 10.0, "limit": "progressSeconds", **fields}
    )


@pytest.mark.parametrize(
    ("ranks", "named", "why"),
    [
        pytest.param([at(), at(19.0, state="T")], 1, "stopped by a signal (state T)", id="a stopped process"),
        pytest.param([at(step=6), at(state="T")], 1, "(state T)", id="stopped goes before fewer steps"),
        pytest.param([at(), at(19.0, step=6)], 1, "all other ranks have done step 7", id="fewest steps"),
        pytest.param([at(collective=9), at(19.0, collective=8)], 1, "never entered collective 9", id="collectives"),
        # Rank 0 alone says how far it is, and stands for the others.
        pytest.param([at(waits=True), RankState()], 1, "rank 1 says nothing of its own", id="who says nothing"),
        pytest.param([at(collective=9), RankState(collective=8)], 1, "never entered", id="who entered less"),
        pytest.param([at(collective=8), RankState(collective=9, waits=True)], 0, "", id="who entered more isn't it"),
        pytest.param([at(collective=9), RankState()], 0, "", id="who says nothing and counts nothing"),
        pytest.param([at(), RankState()], 0, "", id="where nothing tells them apart the one that is watched"),
        pytest.param([at(), RankState(state="T")], 1, "(state T)", id="a stopped one that says nothing"),
        pytest.param([at(collective=9), at(19.0)], 0, "", id="collectives that aren't known of all say nothing"),
        pytest.param([at(waits=True), at(19.0)], 1, "wait in a collective", id="who isn't in a collective"),
        pytest.param([at(), at(19.0, state="D")], 1, "", id="who waits for a device"),
        pytest.param([at(20.0), at(21.0)], 1, "for 21 s at step 7", id="the longest silence"),
        pytest.param([at(), at(9.0, step=6)], 1, "step 6", id="who isn't over the limit itself"),
        pytest.param([at(), RankState()], 0, "", id="who never wrote is not known"),
    ],
)
def test_of_all_ranks_the_one_that_stopped_first_is_named(ranks: list[RankState], named: int, why: str) -> None:
    numbered = dict(enumerate(ranks))
    for order in (numbered, dict(reversed(numbered.items()))):
        found = classify_stall(order)
        assert found is not None
        assert (found.rank, found.patience) == (named, 0.0)
        assert why in found.message


def test_nobody_hangs_while_a_rank_is_at_something_long() -> None:
    saving = at(15.0, limit_seconds=60.0, patient=True, section="checkpoint")
    found = classify_stall({0: at(), 1: saving, 2: at()})
    assert found is not None and found.patience == 45.0
    compiling = RankState(silent_seconds=100.0, limit_seconds=1_800.0, patient=True)
    found = classify_stall({0: at(step=1), 1: compiling})
    assert found is not None and found.patience == 1_700.0
    for ranks in (
        [at(), saving._replace(silent_seconds=61.0)],
        [at(), saving._replace(step=8)],
        [at(state="T"), saving],
    ):
        found = classify_stall(dict(enumerate(ranks)))
        assert found is not None and not found.patience, ranks


def test_a_rank_that_waits_for_others_is_recognized_by_its_main_thread() -> None:
    head = 'Thread 0x00007f01 (most recent call first):\n  File "/x/threading.py", line 320 in wait\n\n'
    torch = '  File "/site-packages/torch/distributed/distributed_c10d.py", line 3245 in all_reduce\n'
    own = '  File "train.py", line 7 in load\n'
    main = "Current thread 0x00007f02 (most recent call first):\n"
    assert waits_in_collective(head + main + torch + own)
    assert not waits_in_collective(head + main + own * 7 + torch)
    assert not waits_in_collective(main + torch + head.replace("7f01", "7f03")), "the oldest thread comes last"
    assert waits_in_collective('Thread 7 (idle): "MainThread"\n' + torch + 'Thread 9 (idle): "other"\n' + own)
    assert not waits_in_collective("")

"""In a stalled job, the rank that stopped first among all known ranks is named."""

from __future__ import annotations

from typing import Any

import pytest

from tests.signer import environment
from trainmaster_operator.agent.hang.hung_rank import classify_stall, is_over, waits_for
from trainmaster_operator.agent.progress.sources import observe_rank
from trainmaster_operator.agent.settings import read_settings
from trainmaster_operator.wire.ranks import WAITS, RankProgress, RankState

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


COLLECTIVE, DEVICE, NOTHING = WAITS


def at(silent: float = 20.0, **fields: Any) -> RankState:
    """Returns the state of a rank that has done step 7 and may be silent for 10 s."""
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
        # Only rank 0 reports its steps, and they count for the others too.
        # The steps take 20 ms and are reported every 0.2 s.
        pytest.param(
            [at(waits=COLLECTIVE, step=6, unreported=10), at(waits=NOTHING, unreported=10)],
            1,
            "rank 0 waits in a collective",
            id="a difference that the age of the reports explains",
        ),
        pytest.param(
            [at(step=6, unreported=1), at(step=8, waits=NOTHING)],
            0,
            "all other ranks have done step 8",
            id="a difference that it doesn't explain",
        ),
        pytest.param([at(collective=9, step=6, unreported=1), at(collective=8)], 1, "never entered", id="then counts"),
        pytest.param([at(waits=COLLECTIVE), RankState()], 1, "rank 1 says nothing of its own", id="who says nothing"),
        pytest.param([at(collective=9), RankState(collective=8)], 1, "never entered", id="who entered less"),
        pytest.param(
            [at(collective=8), RankState(collective=9, waits=COLLECTIVE)], 0, "", id="who entered more isn't it"
        ),
        pytest.param([at(collective=9), RankState()], 0, "", id="who says nothing and counts nothing"),
        pytest.param([at(), RankState()], 0, "", id="where nothing tells them apart the one that is watched"),
        pytest.param([at(), RankState(state="T")], 1, "(state T)", id="a stopped one that says nothing"),
        pytest.param([at(collective=9), at(19.0)], 0, "", id="collectives that aren't known of all say nothing"),
        pytest.param(
            [at(waits=COLLECTIVE), at(19.0, waits=NOTHING)], 1, "waits in a collective", id="who isn't in one"
        ),
        # Rank 0 is in `loss.item()`, and its device is in an all-reduce.
        pytest.param(
            [at(waits=DEVICE, pending=True), at(19.0, waits=NOTHING)], 1, "waits in a coll", id="not in item()"
        ),
        pytest.param([at(waits=NOTHING, pending=True), at(19.0, waits=DEVICE)], 1, "its device", id="a stuck kernel"),
        # A late or missing answer isn't a reason.
        pytest.param([at(30.0), at(waits=COLLECTIVE), at(19.0, waits=NOTHING)], 2, "", id="who gave no stacks"),
        pytest.param([at(30.0), at(waits=COLLECTIVE), at(19.0, waits=DEVICE)], 2, "", id="no stacks, and a device"),
        pytest.param([at(waits=COLLECTIVE), at(19.0)], 1, "rank 0 waits in a coll", id="by elimination"),
        pytest.param([at(waits=DEVICE)], 0, "; it waits for its device", id="the only rank"),
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


def test_nobody_hangs_while_the_rank_that_is_patient_may_be_the_last_one() -> None:
    saving = at(15.0, step=9, limit_seconds=60.0, patient=True)
    found = classify_stall({0: at(unreported=2), 1: saving})
    assert found is not None and found.patience == 45.0


HEAD = 'Thread 0x00007f01 (most recent call first):\n  File "/x/threading.py", line 320 in wait\n\n'
MAIN = "Current thread 0x00007f02 (most recent call first):\n"
TORCH = '  File "/site-packages/torch/distributed/distributed_c10d.py", line 3245 in all_reduce\n'
OWN = '  File "train.py", line 7 in load\n'
BACKWARD = '  File "/site-packages/torch/autograd/graph.py", line 865 in _engine_run_backward\n'
SYNCHRONIZE = '  File "/site-packages/torch/cuda/__init__.py", line 1083 in synchronize\n'
FORMAT = '  File "/site-packages/torch/_tensor.py", line 1150 in __format__\n'


@pytest.mark.parametrize(
    ("stacks", "line", "waits"),
    [
        (HEAD + MAIN + TORCH + OWN, "", COLLECTIVE),
        (HEAD + MAIN + OWN * 7 + TORCH, "", NOTHING),
        # The oldest thread comes last.
        (MAIN + TORCH + HEAD.replace("7f01", "7f03"), "", NOTHING),
        ('Thread 7 (idle): "MainThread"\n' + TORCH + 'Thread 9 (idle): "other"\n' + OWN, "", COLLECTIVE),
        (MAIN + BACKWARD + OWN, "", COLLECTIVE),
        (MAIN + SYNCHRONIZE + OWN, "", DEVICE),
        (MAIN + FORMAT + OWN, "", DEVICE),
        (MAIN + OWN, "        total += loss.item()", DEVICE),
        (MAIN + OWN, "heartbeat(step, 100, loss=float(loss))", DEVICE),
        (MAIN + OWN, "predictions = logits.argmax(-1).tolist()", DEVICE),
        (MAIN + OWN, "host = output.to('cpu')", DEVICE),
        (MAIN + OWN, "batch = next(batches)", NOTHING),
        ('Thread 7 (active): "MainThread"\n    synchronize (torch/cuda/__init__.py:1083)\n', "", DEVICE),
        ("", "loss.item()", ""),
    ],
)
def test_what_a_rank_waits_for_is_recognized_by_its_main_thread(stacks: str, line: str, waits: str) -> None:
    assert waits_for(stacks, line, has_device=True, alone=False) == waits


def test_without_a_device_or_without_others_a_rank_does_not_wait_for_them() -> None:
    assert waits_for(MAIN + OWN, "loss.item()", has_device=False, alone=False) == NOTHING
    assert waits_for(MAIN + BACKWARD, "", has_device=True, alone=True) == DEVICE
    assert waits_for(MAIN + BACKWARD, "", has_device=False, alone=True) == NOTHING

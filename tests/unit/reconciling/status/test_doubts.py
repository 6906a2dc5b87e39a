"""Ranks that never met are named, and ranks that finished while others waited for them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.reconciling.builders import decided, job, observed, pod, running, said
from trainmaster_operator.reconciling.decision import Decision
from trainmaster_operator.wire.ranks import RankProgress

BROKEN = "RuntimeError: Connection closed by peer"
ALONE = "the ranks never formed a group: each of the 2 ranks trained alone; "


def ended(error: str = BROKEN, step: int | None = 20, total: int | None = 40, **fields: Any) -> Decision:
    """Returns the decision when rank 0 fails after worker 1, if it is there, has finished."""
    reports = [said(0, "Failed", rank=0, exit_code=1, error=error, **{"culprit": False, **fields})]
    progress = {0: {0: RankProgress(step=step, total_steps=total)}, 1: {1: RankProgress(step=30, total_steps=30)}}
    reports.append(said(1, "Running" if fields.get("finished") else "Finished", exit_code=0, ago=2.0))
    around = observed(*reports, given=[pod(0), pod(1)], progress=progress, progress_attempt=1)
    return decided(job(running()), around)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({}, "was at step 20 of 40"),
        ({"total": None}, "was at step 20"),
        ({"step": None}, "still trained"),
        ({"finished": (1,)}, "was at step 20 of 40"),
        ({"reason": "Hung", "culprit": True, "error": "rank 0 made no progress"}, "was at step 20 of 40"),
    ],
)
def test_a_rank_that_finished_early_is_the_cause(fields: dict[str, Any], where: str) -> None:
    message = ended(**fields).status.failures[0].message
    assert message.startswith(f"rank 1 finished while rank 0 {where}; give each rank the same number of batches: ")
    assert "; rank 0 (worker 0, pod bert-0, node node-0) " in message


@pytest.mark.parametrize("fields", [{"step": 40}, {"culprit": True, "error": "ValueError: bad"}])
def test_it_is_not_if_the_other_had_made_its_last_step_or_fails_by_itself(fields: dict[str, Any]) -> None:
    assert "finished while" not in ended(**fields).status.failures[0].message


@pytest.mark.parametrize("state", ["Running", "Finished"])
def test_ranks_that_never_met_are_noticed_once(state: Any) -> None:
    around = observed(*(said(worker, state, exit_code=0, alone=True) for worker in (0, 1)))
    found = decided(job(running()), around)
    assert found.status.phase == ("Succeeded" if state == "Finished" else "Running")
    assert found.status.progress is not None
    assert (found.status.progress.notice or "").startswith(ALONE)
    assert [(event.type, event.reason) for event in found.events if "never formed" in event.message] == [
        ("Warning", "NeverMet")
    ]
    again = decided(job(found.status), around)
    assert again.status == found.status and not again.events


def test_one_worker_whose_ranks_met_is_enough() -> None:
    around = observed(said(0, "Finished", exit_code=0, alone=True), said(1, "Finished", exit_code=0))
    found = decided(job(running()), around).status
    assert found.progress is None or found.progress.notice is None

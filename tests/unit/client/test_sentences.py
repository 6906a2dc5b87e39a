"""The sentences before a suspension or resumption name the losses, and the step at which training continues."""

from __future__ import annotations

from typing import Any

import pytest

from tests.processes.dashboard.fake_api import job
from trainmaster.client import TrainingJob
from trainmaster.client.sentences import lost_checkpoints, start_of_resumed

EMPTY_DIR = {"checkpoint": {"volume": {"emptyDir": True}}}
CLAIM = {"checkpoint": {"volume": {"claimName": "checkpoints"}}}


def made(spec: dict[str, Any], **status: Any) -> TrainingJob:
    found = job("bert", **status)
    found["spec"] |= spec
    return TrainingJob.of(found)


def test_what_goes_with_the_pods_is_lost() -> None:
    assert "begins at step 0" in str(lost_checkpoints(made(EMPTY_DIR)))
    assert "has no spec.checkpoint" in str(lost_checkpoints(made({})))
    assert lost_checkpoints(made(CLAIM)) is None
    assert lost_checkpoints(made(EMPTY_DIR, attempt=0)) is None


@pytest.mark.parametrize("wrong", [None, [], "x", {"spec": []}, {"spec": {"volumes": "x"}}])
def test_no_spec_breaks_it(wrong: Any) -> None:
    for spec in ({"podTemplate": wrong}, {"checkpoint": wrong}):
        lost_checkpoints(made(spec))


def test_resume_says_from_which_step_as_far_as_that_is_known() -> None:
    step = {"progress": {"step": 1234}}
    assert start_of_resumed(made(CLAIM, **step)).endswith("isn't known here; the last reported step is 1,234.")
    assert start_of_resumed(made(CLAIM)) == (
        "It continues from its last checkpoint, if it has one; it has reported no step."
    )
    assert start_of_resumed(made(EMPTY_DIR, **step)) == (
        "The checkpoints of bert are on an emptyDir, which goes with its pods: it begins at step 0 when it is resumed."
    )

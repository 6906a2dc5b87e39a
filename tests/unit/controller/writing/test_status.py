"""`writing.status` makes a patch that turns any status on the server into the decided one."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.controller.fake_cluster import merge
from trainmaster_operator.api.v1alpha1 import JobStatus, Progress, Stall
from trainmaster_operator.controller.writing.status import is_only_progress, merge_patch, to_wire

leaves = st.one_of(st.integers(0, 3), st.text("ab", max_size=2), st.lists(st.integers(0, 2), max_size=2))
documents = st.recursive(
    st.dictionaries(st.sampled_from("abc"), leaves, max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), st.one_of(leaves, inner), max_size=3),
    max_leaves=8,
)


@settings(max_examples=2 * settings.default.max_examples)
@given(documents, documents)
def test_applying_the_patch_gives_the_new_document(old: dict[str, object], new: dict[str, object]) -> None:
    patch = merge_patch(old, new)
    assert merge(old, patch) == new
    assert (patch == {}) == (old == new)


def test_what_is_not_set_any_more_is_removed() -> None:
    old = to_wire(JobStatus(phase="Restarting", attempt=2, next_attempt_time="2026-11-21T04:00:00Z"))
    new = to_wire(JobStatus(phase="Running", attempt=2))
    assert merge_patch(old, new) == {"phase": "Running", "nextAttemptTime": None}


def test_progress_alone_is_recognised() -> None:
    old = to_wire(JobStatus(phase="Running", attempt=1, progress=Progress(step=1)))
    assert is_only_progress(merge_patch(old, to_wire(JobStatus(phase="Running", attempt=1, progress=Progress(step=2)))))
    assert not is_only_progress(merge_patch(old, to_wire(JobStatus(phase="Failed", attempt=1))))
    assert not is_only_progress({})


def test_the_begin_and_the_end_of_a_stall_are_more_than_progress() -> None:
    def status(**fields: Any) -> dict[str, Any]:
        return to_wire(JobStatus(phase="Running", attempt=1, progress=Progress(step=1, **fields)))

    stalled = status(stall=Stall(since="2026-11-21T04:00:00Z", message="rank 1 is at train.py:41"))
    assert not is_only_progress(merge_patch(status(), stalled))
    assert not is_only_progress(merge_patch(stalled, status()))

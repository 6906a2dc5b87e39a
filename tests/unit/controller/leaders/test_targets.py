"""`leaders.targets` decides which agents of a job the operator watches, and for which workers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.world import snapshot_of
from trainmaster_operator.api.v1alpha1 import JobStatus
from trainmaster_operator.controller.apiserver.cluster import JOBS, PODS, STATEFUL_SETS
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.leaders.targets import StreamTarget, stream_target


def planned(status: JobStatus, *pods: dict[str, Any]) -> StreamTarget | None:
    store = Store(lambda _: None, KEYS)
    raws = [(JOBS, b.job()), (STATEFUL_SETS, b.child("StatefulSet")), *((PODS, pod) for pod in pods)]
    for number, (resource, raw) in enumerate(raws):
        store.upsert(resource, {**raw, "metadata": {"uid": f"u{number}", **raw["metadata"], "resourceVersion": "1"}})
    snapshot = snapshot_of(store)
    return stream_target(snapshot, status)


def test_only_agents_that_run_are_watched_in_rank_order() -> None:
    assigned = b.assignment(2, workers=(1, 0, 2))
    waiting = {"name": "worker", "state": {"waiting": {"reason": "ContainerCreating"}}}
    found = planned(
        JobStatus(phase="Running", attempt=2),
        b.pod(0, assigned=b.assignment(1)),
        b.pod(1, assigned=assigned),
        b.pod(2, containerStatuses=[waiting]),
    )
    assert found is not None
    assert [agent.worker for agent in found.candidates] == [1, 0]
    assert found.attempt == 2


def test_a_worker_without_a_pod_may_report() -> None:
    """Its next pod may have joined, and finished, before the pass that opened the attempt has made a new plan."""
    found = planned(JobStatus(phase="Restarting", attempt=1), b.pod(0, assigned=b.assignment(1, workers=(0,))))
    assert found is not None
    assert found.workers == {0, 1}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Suspending", "Suspended"])
def test_a_job_that_does_not_train_is_not_watched(phase: Any) -> None:
    assert planned(JobStatus(phase=phase, attempt=1), b.pod(0, assigned=b.assignment(1))) is None

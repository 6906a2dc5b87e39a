"""A node counts as lost by its Lease; time in which nothing ran doesn't count."""

from __future__ import annotations

from typing import cast

import pytest

from local.tests.unit.kinds.api import started
from trainmaster_local.config import NodeTimings
from trainmaster_local.controllers.nodes import LEASES, NodeController
from trainmaster_local.events import EventRecorder

TIMINGS = NodeTimings(lease_seconds=0.5, monitor_grace_seconds=2.0, monitor_seconds=0.25)


@pytest.mark.parametrize(
    ("looks", "lost"),
    [
        ([0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0], False),
        ([0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25], True),
        # Nothing in this process, kubelets included, ran for five seconds.
        ([0.0, 0.25, 5.25], False),
        ([0.0, 0.25, 5.25, 5.5, 5.75, 6.0, 6.25, 6.5, 6.75, 7.0, 7.25], True),
    ],
)
async def test_only_time_that_was_watched_is_held_against_a_node(looks: list[float], lost: bool) -> None:
    api = await started()
    lease = {"metadata": {"name": "one"}, "spec": {"renewTime": "2026-11-22T04:00:00.000000Z"}}
    await api.create(LEASES, lease, "kube-node-lease")
    monitor = NodeController(api, cast(EventRecorder, None), TIMINGS)
    assert [monitor._is_lost("one", now) for now in looks][-1] is lost

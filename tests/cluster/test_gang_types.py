"""The type of a gang scheduler's object comes, goes and comes again while the operator watches it.

No pod has to run for that, so the tests also pass on an API server alone.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.gang_schedulers import VOLCANO, installed
from tests.cluster.operator_under_test import OperatorProcess, training_job
from trainmaster_local.inside import Fault
from trainmaster_local.testing.clusters import Cluster

pytestmark = pytest.mark.alone

JOB = training_job("job", "pass", scheduling={"gang": {"scheduler": "volcano"}})
# The sweep makes up for a lost watch after minutes; a working watch shows a deletion at once.
SOON = 20.0


def pod_groups(cluster: Cluster) -> list[dict[str, Any]]:
    return cluster.items("podgroups.scheduling.volcano.sh")


def reason(cluster: Cluster) -> str:
    conditions = (cluster.get("dtj", "job").get("status") or {}).get("conditions", [])
    return next((str(one["reason"]) for one in conditions if one["type"] == "Running"), "")


def is_made_again(cluster: Cluster) -> None:
    """Deletes the job's PodGroup, and waits until the operator has seen that and recreated it."""
    (group,) = cluster.eventually(lambda: pod_groups(cluster), 60, "the PodGroup")
    cluster.delete("podgroup.scheduling.volcano.sh", "job", wait=False)
    uid = group["metadata"]["uid"]
    cluster.eventually(
        lambda: [one for one in pod_groups(cluster) if one["metadata"]["uid"] != uid], SOON, "what is lost is seen"
    )


def test_what_is_lost_is_seen_also_of_a_type_that_was_installed_again(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    cluster.apply(JOB)
    for _ in range(2):
        cluster.eventually(lambda: reason(cluster) == "NotInstalled", 60, "shown")
        with installed(cluster, VOLCANO):
            is_made_again(cluster)


class Lists:
    """Counts the operator's lists of PodGroups; the one with the given number is slow."""

    def __init__(self, cluster: Cluster, slow: int = 0) -> None:
        self.count = 0
        self._namespace, self._slow = cluster.namespace, slow
        cluster.embedded.cluster.faults.hook = self._count

    def _count(self, verb: str, resource: str, name: str, namespace: str) -> Fault | None:
        if (verb, resource, namespace) != ("list", "podgroups.scheduling.volcano.sh", self._namespace):
            return None
        self.count += 1
        return Fault(latency=4.0) if self.count == self._slow else None


@pytest.mark.usefixtures("pods_run")
def test_a_type_that_is_served_before_discovery_names_it_is_watched_as_soon_as_it_does(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    """A busy real API server behaves like this. kopf looks once, and never again."""
    faults = cluster.embedded.cluster.faults
    lists = Lists(cluster)
    hidden = faults.add(Fault(verb="discover", resource="scheduling.volcano.sh/v1beta1"))
    with installed(cluster, VOLCANO):
        cluster.apply(JOB)
        # The operator's own, and the check that the type is served; kopf would have begun by the next one, the sweep's.
        cluster.eventually(lambda: lists.count >= 3, 60, "the type is found")
        faults.rules.remove(hidden)
        is_made_again(cluster)


@pytest.mark.usefixtures("pods_run")
def test_what_is_deleted_before_the_watch_has_begun_is_seen_too(cluster: Cluster, operator: OperatorProcess) -> None:
    """The third list is kopf's own: the operator's and the check that the type is served come before it."""
    with installed(cluster, VOLCANO):
        lists = Lists(cluster, slow=3)
        cluster.apply(JOB)
        # After the sweep that the operator's own list asks for, and before kopf's list is carried out.
        cluster.eventually(lambda: lists.count >= 4, 60, "a sweep")
        is_made_again(cluster)

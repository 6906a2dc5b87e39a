"""`lookups.kueue`, `cache.workload_view`, `writing.workload_status`: Kueue's objects are read, and lose nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.fake_cluster import FakeCluster
from trainmaster_operator.controller.apiserver.cluster import GANGS, JOBS, RESOURCE_FLAVORS, whole
from trainmaster_operator.controller.apiserver.errors import Conflict, Forbidden
from trainmaster_operator.controller.cache.records import JobKey
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.cache.workload_view import workload_view
from trainmaster_operator.controller.lookups.kueue import FLAVORS, PRIORITIES
from trainmaster_operator.controller.lookups.lookup import Lookups
from trainmaster_operator.controller.writing.workload_status import report_workload
from trainmaster_operator.reconciling.decision import ReportWorkload, WorkloadCondition
from trainmaster_operator.reconciling.observed.snapshot import Flavor, PodSetAdmission, WorkloadView

WORKLOADS = GANGS["kueue"]
KEY = JobKey(b.NAMESPACE, "bert")
OLD = "2026-11-20T00:00:00Z"


def condition(kind: str, status: str, reason: str = "R", message: str = "m") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": OLD}


def workload(uid: str, *conditions: dict[str, Any], **status: Any) -> dict[str, Any]:
    job = b.job()
    owner = {"controller": True, "uid": uid, "kind": JOBS.kind, "name": "bert", "apiVersion": JOBS.api_version}
    labels = {"trainmaster.dev/job-name": "bert"}
    return {
        "metadata": {**job["metadata"], "uid": "wl", "name": "bert", "labels": labels, "ownerReferences": [owner]},
        "spec": {"podSets": [{"name": "worker", "count": 2}]},
        "status": {"conditions": list(conditions), **status},
    }


def test_an_admission_is_read_with_what_its_checks_add() -> None:
    update = {"name": "worker", "nodeSelector": {"zone": "a"}, "tolerations": [{"key": "t"}], "labels": {"l": "1"}}
    raw = workload(
        "job",
        condition("Admitted", "True"),
        condition("QuotaReserved", "True"),
        condition("Evicted", "False"),
        admission={"podSetAssignments": [{"name": "worker", "count": 2, "flavors": {"cpu": "f", "gpu": "f"}}]},
        admissionChecks=[{"name": "c", "podSetUpdates": [update, {"name": "other", "labels": {"x": "y"}}]}],
    )
    view = workload_view(raw)
    assert (view.admitted, view.reserved, view.evicted, view.counts) == (True, True, "", (("worker", 2),))
    assert view.pod_sets == (PodSetAdmission("worker", 2, ("f",), (("zone", "a"),), ({"key": "t"},), (("l", "1"),)),)
    assert workload_view({}) == WorkloadView()


async def test_giving_quota_back_clears_the_admission_and_keeps_the_rest() -> None:
    cluster, store = FakeCluster(), Store(lambda key: None, KEYS)
    conditions = [condition("QuotaReserved", "True"), condition("Admitted", "True"), condition("Evicted", "True")]
    cluster.put(WORKLOADS, workload("job", *conditions, admission={"clusterQueue": "q"}, requeueState={"count": 1}))
    requeued = WorkloadCondition("Requeued", True, "Preempted", "for bigger")
    await report_workload(cluster, store, KEY, ReportWorkload("bert", "wl", (requeued,), "for bigger"), 1_795_233_600.0)
    status = (await cluster.get(whole(WORKLOADS), b.NAMESPACE, "bert"))["status"]
    held = {item["type"]: item["status"] for item in status["conditions"]}
    assert held == {"QuotaReserved": "False", "Admitted": "False", "Evicted": "True", "Requeued": "True"}
    assert (status.get("admission"), status["requeueState"]) == (None, {"count": 1})
    moved = {item["type"]: item["lastTransitionTime"] for item in status["conditions"]}
    assert moved["Evicted"] == OLD
    assert moved["Admitted"] != OLD


async def test_a_workload_that_was_replaced_gets_no_update() -> None:
    cluster, store = FakeCluster(), Store(lambda key: None, KEYS)
    cluster.put(WORKLOADS, workload("job"))
    finished = WorkloadCondition("Finished", True, "Succeeded", "done")
    await report_workload(cluster, store, KEY, ReportWorkload("bert", "another", (finished,)), 0.0)
    assert (await cluster.get(WORKLOADS, b.NAMESPACE, "bert"))["status"]["conditions"] == []
    cluster.fail("patch status", "workloads", Conflict("patch", "changed", status=409))
    with pytest.raises(Conflict):
        await report_workload(cluster, store, KEY, ReportWorkload("bert", "wl", (finished,)), 0.0)


async def test_flavors_are_read_once_and_again_only_where_that_failed() -> None:
    cluster, store = FakeCluster(), Store(lambda key: None, KEYS)
    job = b.job()
    job["spec"] = {**job["spec"], "scheduling": {"gang": {"scheduler": "kueue"}, "queue": "q"}}
    stored = cluster.put(JOBS, job)
    store.upsert(JOBS, stored)
    admission = {"podSetAssignments": [{"name": "worker", "flavors": {"gpu": "h100"}}]}
    store.upsert(WORKLOADS, cluster.put(WORKLOADS, workload(stored["metadata"]["uid"], admission=admission)))
    lookups = Lookups(cluster, store, [PRIORITIES, FLAVORS])

    async def run() -> float | None:
        snapshot = store.snapshot(KEY)
        assert snapshot is not None
        return await lookups.after_decision(KEY, snapshot)

    cluster.fail("get", "resourceflavors", Forbidden("get", "no", status=403))
    assert await run() is not None
    raw = {"metadata": {"namespace": "", "name": "h100"}, "spec": {"nodeLabels": {"gpu": "h100"}}}
    cluster.put(RESOURCE_FLAVORS, raw)
    assert await run() is None
    snapshot = store.snapshot(KEY)
    assert snapshot is not None
    assert snapshot.observed.flavors == {"h100": Flavor((("gpu", "h100"),))}
    before = cluster.calls["get", "ResourceFlavor"]
    assert await run() is None
    assert cluster.calls["get", "ResourceFlavor"] == before

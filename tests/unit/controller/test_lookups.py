"""`lookups` decides which questions to ask and when to repeat them, answers them, and records the answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.fake_cluster import FakeCluster
from tests.unit.controller.world import KEY, BaseWorld
from trainmaster_operator.controller.apiserver.cluster import (
    EVENTS,
    GANGS,
    JOBS,
    NODES,
    PODS,
    RESOURCE_FLAVORS,
    RESOURCE_QUOTAS,
    STATEFUL_SETS,
    whole,
)
from trainmaster_operator.controller.apiserver.errors import Conflict, Forbidden, Unavailable
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.cache.views import workload_view
from trainmaster_operator.controller.lookups import Lookups
from trainmaster_operator.controller.writing.status import report_workload
from trainmaster_operator.reconciling import decide
from trainmaster_operator.reconciling.decision import ReportWorkload, WorkloadCondition
from trainmaster_operator.reconciling.observed.snapshot import PodSetAdmission, WorkloadView
from trainmaster_operator.rendering import Placement, Settings

UIDS = ["pod-bert-0", "pod-bert-1"]


class ListedPods(BaseWorld):
    """A cluster with a job of two pods, of which the store knows the job only."""

    def __init__(self, phase: str = "Running", pod_uids: list[str] = UIDS) -> None:
        super().__init__()
        self.lookups = Lookups(self.cluster, self.store)
        self.statefulset = self.cluster.put(STATEFUL_SETS, b.child("StatefulSet"))
        self.pods = [self.cluster.put(PODS, b.pod(index)) for index in range(2)]
        self.publish({"phase": phase, "attempt": 1, "podUIDs": pod_uids})

    def publish(self, status: dict[str, Any]) -> None:
        self.put(JOBS, b.job(status=status))

    def show_pods(self) -> None:
        for resource, raw in [(STATEFUL_SETS, self.statefulset), *((PODS, pod) for pod in self.pods)]:
            self.store.upsert(resource, raw)

    @property
    def lists(self) -> int:
        return self.cluster.calls["list", "Pod"]

    async def decide_on(self) -> list[str]:
        """Returns the uids of the pods that a decision is based on."""
        while await self.lookups.before_decision(KEY, self.snapshot()):
            pass
        return [pod.uid for pod in self.snapshot().observed.pods]


@pytest.mark.parametrize("phase", ["Pending", "Starting", "Running", "Restarting"])
async def test_pods_and_their_sets_are_listed_where_the_watch_of_jobs_is_ahead(phase: str) -> None:
    world = ListedPods(phase)
    assert await world.decide_on() == UIDS
    assert await world.decide_on() == UIDS
    assert world.lists == 1


@pytest.mark.parametrize("phase", ["Suspending", "Suspended", "Succeeded", "Failed"])
async def test_pods_of_attempts_against_which_nothing_is_held_are_not_listed(phase: str) -> None:
    assert await ListedPods(phase).decide_on() == []


async def test_pods_that_the_watch_has_shown_are_not_listed_nor_are_those_that_it_has_shown_to_be_gone() -> None:
    world = ListedPods()
    world.show_pods()
    world.cluster.remove(PODS, b.NAMESPACE, "bert-1")
    world.store.delete(PODS, world.pods[1])
    assert await world.decide_on() == UIDS[:1]
    assert world.lists == 0


async def test_a_pod_that_is_not_there_is_listed_once_for_each_status_that_names_it() -> None:
    world = ListedPods()
    world.cluster.remove(PODS, b.NAMESPACE, "bert-1")
    assert await world.decide_on() == UIDS[:1]
    assert await world.decide_on() == UIDS[:1]
    assert world.lists == 1
    world.publish({"phase": "Starting", "attempt": 2, "podUIDs": [UIDS[0], "another"]})
    world.cluster.put(PODS, b.pod(1, uid="another"))
    assert await world.decide_on() == [UIDS[0], "another"]
    assert world.lists == 2


async def test_nothing_is_decided_while_they_cannot_be_listed() -> None:
    world = ListedPods()
    world.cluster.fail("list", "pods", Unavailable("list", "busy", status=503))
    with pytest.raises(Unavailable):
        await world.decide_on()
    assert await world.decide_on() == UIDS


async def test_an_attempt_whose_pods_are_not_known_yet_needs_no_list() -> None:
    world = ListedPods("Pending", [])
    await world.decide_on()
    assert world.lists == 0


QUOTA = (
    'create Pod bert-1 in StatefulSet bert failed error: pods "bert-1" is forbidden: exceeded quota: gpus, requested: '
)
QUOTA += "pods=1, used: pods=4, limited: pods=4"


class StatefulSetEvents(BaseWorld):
    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.lookups = Lookups(self.cluster, self.store, clock=lambda: self.now)
        self.put(JOBS, b.job())
        self.set_uid = self.put(STATEFUL_SETS, b.child("StatefulSet"))["metadata"]["uid"]
        self.put(PODS, b.pod(0))

    def event(self, message: str, at: str, uid: str | None = None) -> None:
        metadata = {"namespace": b.NAMESPACE, "name": f"e{at}"}
        about = {"kind": "StatefulSet", "name": "bert", "uid": uid or self.set_uid}
        self.cluster.put(
            EVENTS, {"metadata": metadata, "involvedObject": about, "message": message, "lastTimestamp": at}
        )

    async def run(self) -> float | None:
        return await self.lookups.after_decision(KEY, self.snapshot())

    def problems(self) -> list[str]:
        return [problem.message for problem in self.snapshot().observed.refused_writes]


async def test_the_newest_refusal_becomes_a_problem_after_some_patience_and_goes_with_the_last_pod() -> None:
    world = StatefulSetEvents()
    world.event("an old one", "2026-11-21T03:00:00Z")
    world.event(QUOTA, "2026-11-21T04:00:00Z")
    world.event("of an earlier set of the same name", "2026-11-21T05:00:00Z", uid="another")
    assert await world.run() == 3.0
    assert world.problems() == []
    world.now += 3
    assert await world.run() == 5.0
    assert world.problems() == [QUOTA]
    world.put(PODS, b.pod(1))
    assert await world.run() is None
    assert world.problems() == []


async def test_a_refusal_is_read_again_while_pods_are_missing_and_cleared_when_none_is() -> None:
    world = StatefulSetEvents()
    world.event(QUOTA, "2026-11-21T04:00:00Z")

    async def after(seconds: float) -> float | None:
        world.now += seconds
        return await world.run()

    assert [await after(seconds) for seconds in (0, 1, 2, 4, 1)] == [3.0, 2.0, 5.0, 1.0, 5.0]
    assert world.cluster.calls["list", "Event"] == 2
    last = world.put(PODS, b.pod(1))
    assert await after(1) is None
    assert world.problems() == []
    world.store.delete(PODS, last)
    assert await after(1) == 3.0, "the wait begins again"
    world.lookups.forget(b.JOB_UID)
    assert await after(2) == 3.0, "and for a new job of the same name"


async def test_a_set_is_touched_when_the_quota_that_stopped_it_has_changed() -> None:
    world = StatefulSetEvents()
    quota = {"metadata": {"namespace": b.NAMESPACE, "name": "gpus"}}
    tried = []
    for again in (False, False, True):
        if again or not tried:
            version = world.cluster.put(RESOURCE_QUOTAS, quota)["metadata"]["resourceVersion"]
        world.event(QUOTA, "2026-11-21T04:00:00Z")
        await world.run()
        world.now += 5
        await world.run()
        found = await world.cluster.get(whole(STATEFUL_SETS), b.NAMESPACE, "bert")
        tried.append(found["metadata"]["annotations"]["trainmaster.dev/tried-quota"])
        assert tried[-1] == f"gpus {version}"
    assert tried[0] == tried[1] != tried[2]


@pytest.mark.parametrize("name", ["../secrets/token", "GPUS", "a" * 254])
async def test_a_quota_that_has_no_name_is_not_read(name: str) -> None:
    world = StatefulSetEvents()
    world.event(QUOTA.replace("gpus", name), "2026-11-21T04:00:00Z")
    await world.run()
    world.now += 3
    await world.run()
    assert not world.cluster.calls["get", "ResourceQuota"]


@pytest.mark.parametrize("unread", ["quota", "events"])
async def test_a_quota_or_events_that_cant_be_read_are_no_failure(unread: str) -> None:
    world = StatefulSetEvents()
    world.event(QUOTA, "2026-11-21T04:00:00Z")
    if unread == "events":
        world.cluster.fail("list", "events", Forbidden("list", "no", status=403))
    await world.run()
    world.now += 3
    assert await world.run() == 5.0
    assert world.problems() == ([QUOTA] if unread == "quota" else [])


PROBE = "Container worker failed liveness probe, will be restarted"


class KubeletEvents(BaseWorld):
    def __init__(self, **end: Any) -> None:
        super().__init__()
        self.lookups = Lookups(self.cluster, self.store)
        self.put(JOBS, b.job())
        self.put(STATEFUL_SETS, b.child("StatefulSet"))
        container = {**b.running(), "lastState": b.terminated(**{"code": 137, **end})["state"]}
        self.put(PODS, b.pod(0, containerStatuses=[container]))

    def event(self, message: str, at: str, *, uid: str = "pod-bert-0", container: str = "worker") -> None:
        about = {"kind": "Pod", "name": "bert-0", "uid": uid, "fieldPath": f"spec.containers{{{container}}}"}
        metadata = {"namespace": b.NAMESPACE, "name": f"e{len(self.cluster.objects)}"}
        body = {"involvedObject": about, "reason": "Killing", "message": message, "lastTimestamp": at}
        self.cluster.put(EVENTS, {"metadata": metadata, **body})

    async def run(self) -> list[str | None]:
        await self.lookups.before_decision(KEY, self.snapshot())
        return list(self.snapshot().observed.kills.values())

    @property
    def asked(self) -> int:
        return self.cluster.calls["list", "Event"]


async def test_a_probes_kill_is_found_among_the_pods_events_and_asked_for_once() -> None:
    world = KubeletEvents()
    world.event(PROBE, "2026-11-21T04:00:05Z")
    world.event("Container worker failed liveness probe, long ago", "2026-11-20T04:00:05Z")
    world.event("Container worker failed liveness probe, in another life", "2026-11-21T04:30:05Z")
    world.event("Container side failed liveness probe, will be restarted", "2026-11-21T04:00:06Z", container="side")
    world.event("of an earlier pod of this name: a probe", "2026-11-21T04:00:06Z", uid="another")
    world.event("Stopping container worker", "2026-11-21T04:00:07Z")
    assert await world.run() == [f"the kubelet: {PROBE}"]
    assert await world.run() == [f"the kubelet: {PROBE}"]
    assert world.asked == 1


async def test_many_ends_at_a_time_are_asked_for_together() -> None:
    world = KubeletEvents()
    for index in (1, 2):
        container = {**b.running(), "lastState": b.terminated(137)["state"]}
        world.put(PODS, b.pod(index, containerStatuses=[container]))
    world.event(PROBE, "2026-11-21T04:00:05Z")
    world.event(PROBE, "2026-11-21T04:00:05Z", uid="pod-bert-2")
    assert await world.run() == [f"the kubelet: {PROBE}", None, f"the kubelet: {PROBE}"]
    assert world.asked == 1


async def test_what_cannot_be_read_holds_nothing_up() -> None:
    world = KubeletEvents()
    world.cluster.fail("list", "events", Forbidden("events", "not allowed", status=403))
    assert await world.run() == [None]
    assert await world.run() == [None]
    assert world.asked == 1


@pytest.mark.parametrize("end", [{"code": 1}, {"code": 137, "reason": "OOMKilled"}, {"code": 0}])
async def test_nobody_is_asked_about_an_end_that_explains_itself(end: dict[str, Any]) -> None:
    world = KubeletEvents(**end)
    assert await world.run() == []
    assert world.asked == 0


async def test_nodes_are_read_once_and_again_only_after_a_failure_that_passes() -> None:
    world = BaseWorld()
    world.put(JOBS, b.job(scheduling={"topology": {"key": "rack"}}))
    world.put(STATEFUL_SETS, b.child("StatefulSet"))
    for index in range(2):
        world.put(PODS, {**b.pod(index), "spec": {"nodeName": f"node-{index}"}})
    world.cluster.put(NODES, {"metadata": {"namespace": "", "name": "node-0", "labels": {"rack": "a"}}})
    lookups = Lookups(world.cluster, world.store)

    async def once() -> float | None:
        return await lookups.after_decision(KEY, world.snapshot())

    world.cluster.fail("get", "nodes", Unavailable("get", "busy", status=503))
    assert await once() is not None
    assert len(world.snapshot().observed.domains) == 1
    world.cluster.fail("get", "nodes", Forbidden("get", "no", status=403))
    assert await once() is None
    assert world.snapshot().observed.domains.keys() == {"node-0", "node-1"}
    asked = world.cluster.calls["get", "Node"]
    assert await once() is None
    assert world.cluster.calls["get", "Node"] == asked


WORKLOADS = GANGS["kueue"]
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
    placement = Placement((("zone", "a"),), ({"key": "t"},), (("l", "1"),))
    assert view.pod_sets == (PodSetAdmission("worker", 2, ("f",), placement),)
    assert workload_view({}) == WorkloadView()


async def test_giving_quota_back_clears_the_admission_and_keeps_the_rest() -> None:
    cluster, store = FakeCluster(), Store(lambda key: None, KEYS)
    conditions = [condition("QuotaReserved", "True"), condition("Admitted", "True"), condition("Evicted", "True")]
    cluster.put(WORKLOADS, workload("job", *conditions, admission={"clusterQueue": "q"}, requeueState={"count": 1}))
    requeued = WorkloadCondition("Requeued", True, "Preempted", "for bigger")
    await report_workload(cluster, store, KEY, ReportWorkload("bert", "wl", requeued, "for bigger"), 1_795_233_600.0)
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
    await report_workload(cluster, store, KEY, ReportWorkload("bert", "another", finished), 0.0)
    assert (await cluster.get(WORKLOADS, b.NAMESPACE, "bert"))["status"]["conditions"] == []
    cluster.fail("patch status", "workloads", Conflict("patch", "changed", status=409))
    with pytest.raises(Conflict):
        await report_workload(cluster, store, KEY, ReportWorkload("bert", "wl", finished), 0.0)


async def test_flavors_are_read_once_and_again_only_where_that_failed() -> None:
    world = BaseWorld()
    world.put(JOBS, b.job(scheduling={"gang": {"scheduler": "kueue"}, "queue": "q"}))
    admission = {"podSetAssignments": [{"name": "worker", "flavors": {"gpu": "h100"}}]}
    world.put(WORKLOADS, workload(b.JOB_UID, admission=admission))
    lookups = Lookups(world.cluster, world.store)

    async def run() -> float | None:
        return await lookups.after_decision(KEY, world.snapshot())

    world.cluster.fail("get", "resourceflavors", Forbidden("get", "no", status=403))
    assert await run() is not None
    raw = {"metadata": {"namespace": "", "name": "h100"}, "spec": {"nodeLabels": {"gpu": "h100"}}}
    world.cluster.put(RESOURCE_FLAVORS, raw)
    assert await run() is None
    assert world.snapshot().observed.flavors == {"h100": Placement((("gpu", "h100"),))}
    before = world.cluster.calls["get", "ResourceFlavor"]
    assert await run() is None
    assert world.cluster.calls["get", "ResourceFlavor"] == before


class FailedInit(BaseWorld):
    """A cluster with a job whose workers' init container has failed."""

    def __init__(self, message: str = "") -> None:
        super().__init__()
        self.lookups = Lookups(self.cluster, self.store)
        self.put(STATEFUL_SETS, b.child("StatefulSet"))
        ended = {"exitCode": 3, "reason": "Error", "message": message, "finishedAt": "2026-11-20T00:00:00Z"}
        init = {"name": "copy", "state": {"terminated": ended}, "restartCount": 0}
        for index in range(2):
            self.put(PODS, b.pod(index, phase="Pending", containerStatuses=[], initContainerStatuses=[init]))
            self.cluster.logs[f"bert-{index}/copy"] = "\n".join(
                f"2026-11-20T00:00:00Z {line}" for line in ("copying", "cp: cannot stat '/data': \x1b[31mNo such file")
            )
        self.put(JOBS, b.job(status={"phase": "Pending", "attempt": 1}))


async def test_the_output_of_a_failed_init_container_is_read_once_and_quoted() -> None:
    world = FailedInit()
    assert await world.lookups.before_decision(KEY, world.snapshot())
    assert not await world.lookups.before_decision(KEY, world.snapshot())
    assert world.cluster.calls["log", "Pod"] == 1
    snapshot = world.snapshot()
    status = decide(snapshot.job, snapshot.observed, 1_795_233_600.0, Settings()).status
    message = next(item.message for item in status.conditions if item.type == "Running")
    quoted = "copying; cp: cannot stat '/data': \\x1b[31mNo such file"
    assert message == f"init container copy of pod bert-0 ended with exit code 3: {quoted}"


async def test_an_init_container_with_a_message_of_its_own_or_a_private_one_is_not_read() -> None:
    private = FailedInit()
    private.lookups.allows_output = lambda job: False
    for world in (FailedInit("no space left"), private):
        assert not await world.lookups.before_decision(KEY, world.snapshot())


async def test_a_log_that_cannot_be_read_delays_nothing() -> None:
    world = FailedInit()
    world.cluster.fail("log", "pods", Forbidden("log", "no", status=403))
    assert await world.lookups.before_decision(KEY, world.snapshot())
    assert not await world.lookups.before_decision(KEY, world.snapshot())

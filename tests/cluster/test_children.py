"""A job's children follow a real API server's rules: who owns which field, what a late write does, and what it
costs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.faked_agents import Script
from tests.cluster.faked_cluster import JOBS as JOBS_NAME
from tests.cluster.faked_cluster import WRITES, faked_cluster
from tests.cluster.operator_under_test import install_crd, training_job
from tests.signer import KEYS
from trainmaster_local.testing.clusters import Cluster
from trainmaster_operator.api.v1alpha1 import JobIdentity
from trainmaster_operator.controller.apiserver.client import KubernetesCluster
from trainmaster_operator.controller.apiserver.cluster import JOBS, STATEFUL_SETS, whole
from trainmaster_operator.controller.apiserver.connection import connect
from trainmaster_operator.controller.apiserver.errors import Conflict, Refused
from trainmaster_operator.controller.cache.records import JobKey, Snapshot
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.keys import AgentsSecrets
from trainmaster_operator.controller.writing.agent_config_maps import AgentConfigMaps
from trainmaster_operator.controller.writing.children import ChildWriter
from trainmaster_operator.rendering import Manifest, Placement, first_assignment, render


@dataclass
class Writing:
    """Holds an operator's view of a job that it has just seen."""

    cluster: KubernetesCluster
    store: Store
    key: JobKey

    @property
    def writer(self) -> ChildWriter:
        agents = AgentConfigMaps(self.cluster, self.store, b"an agent", interval=60.0)
        return ChildWriter(self.cluster, self.store, AgentsSecrets(self.cluster, KEYS), agents)

    def snapshot(self) -> Snapshot:
        found = self.store.snapshot(self.key)
        assert found is not None
        return found

    def the_set(self, replicas: int = 0, **options: Any) -> Manifest:
        """Returns the job's StatefulSet, rendered; without pods unless they are requested."""
        job = self.snapshot().job
        identity = JobIdentity(self.key.namespace, self.key.name, job.uid)
        assert job.spec is not None
        assignment = first_assignment(identity, job.spec)
        manifests = render(identity, job.spec, assignment, replicas={"bert": replicas}, **options)
        return next(manifest for manifest in manifests if manifest.kind == "StatefulSet")

    async def write(self, manifest: Manifest) -> dict[str, Any]:
        """Makes one attempt to write; returns the set afterwards."""
        await self.writer.write(self.key, self.snapshot(), manifest.body)
        return await self.cluster.get(whole(STATEFUL_SETS), self.key.namespace, self.key.name)

    async def bring(self, manifest: Manifest) -> dict[str, Any]:
        """Writes as the queue does: it repeats if the set's controller wrote its status first."""
        while True:
            try:
                return await self.write(manifest)
            except Conflict:
                continue


def with_job(cluster: Cluster, work: Callable[[Writing], Awaitable[None]]) -> None:
    """Runs `work` with a job that no operator knows of."""
    install_crd(cluster)
    cluster.apply(training_job("bert", "pass"))

    async def main() -> None:
        connected = KubernetesCluster(await connect(str(cluster.kubeconfig), None))
        try:
            writing = Writing(connected, Store(lambda key: None, KEYS), JobKey(cluster.namespace, "bert"))
            writing.store.upsert(JOBS, await connected.get(JOBS, cluster.namespace, "bert"))
            await work(writing)
        finally:
            await connected.close()

    asyncio.run(main())


def pod_spec(found: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def on_pool(name: str) -> Placement:
    return Placement(node_selector=(("pool", name),))


def test_a_field_that_a_later_rendering_drops_goes_although_a_create_wrote_it(cluster: Cluster) -> None:
    """Otherwise a job that Kueue moves to another flavor would wait for a node with the labels of both."""

    async def work(writing: Writing) -> None:
        made = await writing.bring(writing.the_set(2, placements={"worker": on_pool("a")}))
        assert pod_spec(made)["nodeSelector"] == {"pool": "a"}
        assert [entry["operation"] for entry in ours(made)] == ["Update"]
        moved = await writing.bring(writing.the_set(2))
        assert "nodeSelector" not in pod_spec(moved)
        assert [entry["operation"] for entry in ours(moved)] == ["Apply"]
        # Kubernetes' own defaults from the create are unchanged.
        left_out = ("nodeSelector", "containers", "tolerations")
        kept = [{k: v for k, v in pod_spec(found).items() if k not in left_out} for found in (made, moved)]
        assert kept[0] == kept[1]

    with_job(cluster, work)


def test_a_set_that_was_scaled_to_zero_first_drops_its_fields_when_it_has_pods_again(cluster: Cluster) -> None:
    async def work(writing: Writing) -> None:
        await writing.bring(writing.the_set(2, placements={"worker": on_pool("a")}))
        await writing.bring(writing.the_set(0))
        again = await writing.bring(writing.the_set(2))
        assert "nodeSelector" not in pod_spec(again)
        assert [entry["operation"] for entry in ours(again)] == ["Apply"]

    with_job(cluster, work)


def test_fields_of_others_stay(cluster: Cluster) -> None:
    async def work(writing: Writing) -> None:
        await writing.bring(writing.the_set(2))
        cluster.kubectl("annotate", "statefulset", "bert", "team=vision")
        writing.store.upsert(STATEFUL_SETS, await writing.cluster.get(STATEFUL_SETS, cluster.namespace, "bert"))
        after = await writing.bring(writing.the_set(2, avoid_nodes=["node-7"]))
        assert after["metadata"]["annotations"]["team"] == "vision"

    with_job(cluster, work)


def ours(found: dict[str, Any]) -> list[dict[str, Any]]:
    entries = found["metadata"]["managedFields"]
    return [entry for entry in entries if entry["manager"] == "trainmaster" and not entry.get("subresource")]


def test_an_object_of_a_childs_name_is_not_written_over(cluster: Cluster) -> None:
    """This includes an object that appears only when the write comes, so that nothing was read before."""

    async def work(writing: Writing) -> None:
        theirs = json.loads(json.dumps(dict(writing.the_set().body)))
        del theirs["metadata"]["ownerReferences"]
        theirs["metadata"]["annotations"] = {"whose": "theirs"}
        cluster.apply(theirs)
        before = cluster.get("statefulset", "bert")
        with pytest.raises(Refused, match="belongs to nobody"):
            await writing.write(writing.the_set(avoid_nodes=["node-7"]))
        after = cluster.get("statefulset", "bert")
        assert (after["spec"], after["metadata"]["annotations"]) == (before["spec"], before["metadata"]["annotations"])

    with_job(cluster, work)


def test_a_deposed_leaders_late_apply_loses(cluster: Cluster) -> None:
    async def work(writing: Writing) -> None:
        await writing.write(writing.the_set())
        leader = Writing(writing.cluster, Store(lambda key: None, KEYS), writing.key)
        leader.store.upsert(JOBS, await writing.cluster.get(JOBS, cluster.namespace, "bert"))
        leader.store.upsert(STATEFUL_SETS, await writing.cluster.get(STATEFUL_SETS, cluster.namespace, "bert"))
        newer = await leader.write(leader.the_set(avoid_nodes=["node-7"]))
        with pytest.raises(Conflict):
            await writing.write(writing.the_set(avoid_nodes=["node-1"]))
        assert pod_spec(cluster.get("statefulset", "bert")) == pod_spec(newer)

    with_job(cluster, work)


def test_an_object_that_was_made_anew_by_somebody_is_not_taken_for_the_child(cluster: Cluster) -> None:
    async def work(writing: Writing) -> None:
        await writing.write(writing.the_set())
        theirs = json.loads(json.dumps(dict(writing.the_set().body)))
        del theirs["metadata"]["ownerReferences"]
        cluster.delete("statefulset", "bert")
        cluster.apply(theirs)
        before = cluster.get("statefulset", "bert")
        for error in (Conflict, Refused):
            with pytest.raises(error):
                await writing.write(writing.the_set(avoid_nodes=["node-7"]))
        assert cluster.get("statefulset", "bert")["spec"] == before["spec"]

    with_job(cluster, work)


def test_a_child_that_is_gone_is_not_made_again_by_an_apply(cluster: Cluster) -> None:
    async def work(writing: Writing) -> None:
        await writing.write(writing.the_set())
        cluster.delete("statefulset", "bert")
        with pytest.raises(Conflict):
            await writing.write(writing.the_set(avoid_nodes=["node-7"]))
        assert cluster.items("statefulset") == []
        assert writing.snapshot().observed.children == ()

    with_job(cluster, work)


def test_a_job_costs_three_writes_until_its_pods_exist_and_seven_of_its_objects_in_all(tmp_path: Path) -> None:
    """Events and the kept logs don't count."""
    with faked_cluster(tmp_path) as world:
        writes: list[tuple[str, str, bool]] = []

        def record(verb: str, resource: str, name: str, namespace: str) -> None:
            if namespace.startswith("case-") and verb in WRITES and resource in counted:
                writes.append((verb, resource, bool(world.api.peek_all("pods", namespace))))

        counted = (f"{JOBS_NAME}/status", "services", "statefulsets.apps", "pods")
        world.threaded.cluster.faults.hook = record
        world.start_operator()
        namespace = world.namespace()
        world.submit(namespace, Script(seconds=0.1))
        world.until(lambda: world.at_rest(namespace), 60.0, lambda: world.describe(namespace))
        assert [write[:2] for write in writes if not write[2]][:3] == [
            ("patch", f"{JOBS_NAME}/status"),
            ("create", "services"),
            ("create", "statefulsets.apps"),
        ]
        assert sum(not pods for _, _, pods in writes) <= 4, "the last: a status that was decided on before they came"
        assert [write[:2] for write in writes if "status" not in write[1]][2:] == [("patch", "statefulsets.apps")]
        assert len(writes) <= 7, writes
        world.stop_operators()


def test_a_foreign_pod_with_the_jobs_labels_is_no_worker(tmp_path: Path) -> None:
    """Its report would have restarted the job, and it would have received the assignment."""
    with faked_cluster(tmp_path) as world:
        touched: list[tuple[str, str]] = []

        def record(verb: str, resource: str, name: str, namespace: str) -> None:
            if name == "job-7" and resource.startswith("pods"):
                touched.append((verb, resource))

        world.start_operator()
        namespace = world.namespace()
        world.submit(namespace, Script(seconds=1.0))
        job = world.api.peek(JOBS_NAME, "job", namespace)
        assert job is not None
        world.threaded.call(world.api.create("pods", foreign_pod(job["metadata"]["uid"]), namespace))
        message = json.dumps({"attempt": 1, "worker": 0, "state": "Failed", "exitCode": 1, "error": "believe me"})
        ended = {"exitCode": 1, "reason": "Error", "message": message, "finishedAt": "2026-11-21T04:00:09Z"}
        container = {"name": "worker", "ready": False, "restartCount": 0, "image": "x", "imageID": "x"}
        found = world.api.peek("pods", "job-7", namespace)
        assert found is not None
        found = {
            **found,
            "status": {"phase": "Failed", "containerStatuses": [{**container, "state": {"terminated": ended}}]},
        }
        world.threaded.cluster.faults.hook = record
        world.threaded.call(world.api.update("pods", found, namespace, name="job-7", subresource="status"))
        world.until(lambda: world.at_rest(namespace, "job-7"), 60.0, lambda: world.describe(namespace))
        status = world.status(namespace)
        assert (status["phase"], status["attempt"], status.get("failures", [])) == ("Succeeded", 1, [])
        assert touched == [], "neither annotated nor deleted, nor is its log read"
        world.stop_operators()


def foreign_pod(job_uid: str) -> dict[str, Any]:
    """Makes a tenant's pod with all of the job's labels; no scheduler takes it."""
    labels = {"trainmaster.dev/job-name": "job", "trainmaster.dev/job-uid": job_uid}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "job-7", "labels": {**labels, "apps.kubernetes.io/pod-index": "0"}},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "worker", "image": "x"}]},
    }

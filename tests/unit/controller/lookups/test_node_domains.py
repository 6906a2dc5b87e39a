"""`lookups.node_domains`: labels of a job's nodes are each read once, and are none where they can't be read."""

from __future__ import annotations

from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.fake_cluster import FakeCluster
from trainmaster_operator.controller.apiserver.cluster import JOBS, NODES, PODS, STATEFUL_SETS
from trainmaster_operator.controller.apiserver.errors import Forbidden, Unavailable
from trainmaster_operator.controller.cache.records import JobKey
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.lookups.lookup import Lookups
from trainmaster_operator.controller.lookups.node_domains import NODE_DOMAINS

KEY = JobKey(b.NAMESPACE, "bert")


async def test_nodes_are_read_once_and_again_only_after_a_failure_that_passes() -> None:
    cluster, store = FakeCluster(), Store(lambda key: None, KEYS)
    job = b.job()
    job["spec"] = {**job["spec"], "scheduling": {"topology": {"key": "rack"}}}
    store.upsert(JOBS, cluster.put(JOBS, job))
    store.upsert(STATEFUL_SETS, cluster.put(STATEFUL_SETS, b.child("StatefulSet")))
    for index in range(2):
        pod = b.pod(index)
        pod["spec"] = {**pod.get("spec", {}), "nodeName": f"node-{index}"}
        store.upsert(PODS, cluster.put(PODS, pod))
    cluster.put(NODES, {"metadata": {"namespace": "", "name": "node-0", "labels": {"rack": "a"}}})
    lookups = Lookups(cluster, store, [NODE_DOMAINS])

    def domains() -> dict[str, str | None]:
        snapshot = store.snapshot(KEY)
        assert snapshot is not None
        return dict(snapshot.observed.domains)

    async def once() -> float | None:
        snapshot = store.snapshot(KEY)
        assert snapshot is not None
        return await lookups.after_decision(KEY, snapshot)

    cluster.fail("get", "nodes", Unavailable("get", "busy", status=503))
    assert await once() is not None
    assert len(domains()) == 1
    cluster.fail("get", "nodes", Forbidden("get", "no", status=403))
    assert await once() is None
    assert set(domains()) == {"node-0", "node-1"}
    asked = cluster.calls["get", "Node"]
    assert await once() is None
    assert cluster.calls["get", "Node"] == asked

"""`apiserver.kept`: large or undecodable objects harm only themselves; the whole operator runs here, over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes.controller.fake_http import FakeHttp, kubeconfig, serving
from tests.unit.controller import builders as b
from tests.unit.controller.fake_cluster import FakeCluster
from tests.unit.controller.polling import until
from trainmaster_operator.controller.apiserver.cluster import CONFIG_MAPS, JOBS, PODS, Resource
from trainmaster_operator.controller.app import Operator
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.settings import OperatorSettings
from trainmaster_operator.reconciling import decide

# A placeholder in a fake object, which `FakeHttp` replaces.
ODD = "something odd"


ODDITIES = {
    "1,100 lists": "[" * 1_100 + "]" * 1_100,
    "5,000 lists": "[" * 5_000 + "]" * 5_000,
    "5,000 mappings": '{"a":' * 5_000 + "1" + "}" * 5_000,
    "300 lists": "[" * 300 + "]" * 300,
    "690 lists": "[" * 690 + "]" * 690,
    "a number of 5,000 digits": "9" * 5_000,
    "half a character": r'"\ud800"',
}


def strange_job() -> dict[str, Any]:
    """Returns a job with `ODD` in its training, and in the API server's record of who set it."""
    raw = b.job("strange", uid="22222222-2222-2222-2222-222222222222", training={"layers": ODD})
    raw["metadata"]["managedFields"] = [{"manager": "kubectl", "fieldsV1": {"f:spec": ODD}}]
    return raw


@asynccontextmanager
async def operating(folder: Path, http: FakeHttp) -> AsyncIterator[Operator]:
    settings = OperatorSettings(kubeconfig=kubeconfig(folder, http.url), leader_elect=False, resync_seconds=0.2)
    operator, stop = Operator(settings, decide), asyncio.Event()
    task = asyncio.create_task(operator.run(stop))
    await asyncio.wait_for(operator.ready.wait(), 30)
    try:
        yield operator
        # Nothing has ended it.
        assert not task.done()
    finally:
        stop.set()
        await asyncio.wait_for(task, 30)


def conditions(cluster: FakeCluster, name: str) -> dict[str, str]:
    found = cluster.objects[JOBS.plural, b.NAMESPACE, name]["status"].get("conditions", [])
    return {item["type"]: item["message"] for item in found if item["status"] == "False"}


def started(cluster: FakeCluster, name: str) -> bool:
    return ("statefulsets", b.NAMESPACE, name) in cluster.objects


@pytest.mark.parametrize("oddity", ODDITIES)
async def test_a_job_that_cannot_be_decoded_costs_only_itself(tmp_path: Path, oddity: str) -> None:
    """It is in the first list, in kopf's list and watch, in the answer to a write, and in the next operator's lists."""
    cluster = FakeCluster()
    async with serving(cluster) as http:
        http.written_as[ODD] = ODDITIES[oddity]
        cluster.put(JOBS, strange_job())
        cluster.put(JOBS, b.job("before", uid="33333333-3333-3333-3333-333333333333"))
        async with operating(tmp_path, http) as operator:
            await until(lambda: started(cluster, "before"))
            await until(lambda: len(http.watches) >= 5)
            late = strange_job()
            late["metadata"] |= {"name": "late", "uid": "44444444-4444-4444-4444-444444444444"}
            cluster.put(JOBS, late)
            cluster.put(JOBS, b.job())
            await until(lambda: started(cluster, "bert"))
            if "lists" in oddity or "mappings" in oddity:
                for name in ("strange", "late"):
                    await until(lambda name=name: "Accepted" in conditions(cluster, name))  # type: ignore[misc]
                    said = conditions(cluster, name)
                    assert said["Accepted"] == said["Running"]
                    assert said["Accepted"].startswith("spec.training: has more than 64 lists and mappings")
                assert not started(cluster, "late")
                counted = b'trainmaster_unreadable_objects_total{kind="DistributedTrainingJob"} 2.0'
                assert counted in operator.metrics.text()
            assert b"trainmaster_watch_restarts_total 0.0" in operator.metrics.text()
        http.watches.clear()
        async with operating(tmp_path, http):
            await until(lambda: len(http.watches) >= 5)
            after = b.job("after", uid="55555555-5555-5555-5555-555555555555")
            cluster.put(JOBS, after)
            await until(lambda: started(cluster, "after"))


async def test_strange_pods_cost_only_themselves(tmp_path: Path) -> None:
    cluster = FakeCluster()
    async with serving(cluster) as http:
        http.written_as[ODD] = "9" * 400
        cluster.put(JOBS, b.job())
        assigned = b.pod(0)
        assigned["metadata"]["annotations"] = {"trainmaster.dev/assignment": '{"attempt": Infinity}'}
        cluster.put(PODS, assigned)
        message = '{"state":"Failed","worker":1,"attempt":1,"at":' + "9" * 400 + "}"
        terminated = {"exitCode": 1, "message": message}
        statuses = [{"name": "worker", "restartCount": ODD, "state": {"terminated": terminated}}]
        cluster.put(PODS, b.pod(1, containerStatuses=statuses))
        async with operating(tmp_path, http):
            await until(lambda: len(http.watches) >= 5 and started(cluster, "bert"))


async def test_large_objects_are_small_before_anything_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come at the start, when watches expire, and in watches: through kopf, sweeps and reads. Fifty once killed an
    operator.
    """
    received: list[tuple[str, int]] = []
    upsert = Store.upsert

    def measured(self: Store, resource: Resource, raw: Any) -> None:
        received.append((resource.kind, len(json.dumps(raw))))
        upsert(self, resource, raw)

    monkeypatch.setattr(Store, "upsert", measured)
    cluster = FakeCluster()
    async with serving(cluster) as http:
        http.written_as[ODD] = "[" + ",".join(['{"name":"A","value":"x"}'] * 50_000) + "]"
        for number in range(5):
            theirs = b.pod(number, name="theirs", uid=f"theirs-{number}")
            theirs["spec"]["containers"] = [{"env": ODD}]
            cluster.put(PODS, theirs)
            data = b.child("ConfigMap", f"theirs-{number}")
            cluster.put(CONFIG_MAPS, {**data, "data": ODD, "metadata": {**data["metadata"], "finalizers": ODD}})
        async with operating(tmp_path, http):
            await until(lambda: len(http.watches) >= 5)
            http.expire()
            await until(lambda: http.lists[PODS.plural] >= 3)
            for number in range(5):
                cluster.put(PODS, cluster.objects[PODS.plural, b.NAMESPACE, f"theirs-{number}"])
            cluster.put(JOBS, b.job())
            await until(lambda: started(cluster, "bert") and [kind for kind, _ in received].count("Pod") >= 15)
    assert max(size for _, size in received) < 4_096

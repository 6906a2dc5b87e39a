"""One object costs only itself: what can't be decoded or read ends neither the operator nor the work on other jobs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.fake_cluster import FakeCluster
from tests.unit.controller.fake_http import FakeHttp, kubeconfig, serving
from tests.unit.controller.polling import until
from trainmaster.api.decoding import MAX_DEPTH, decode
from trainmaster.controller.apiserver.cluster import JOBS, PODS, STATEFUL_SETS
from trainmaster.controller.apiserver.errors import Unusable
from trainmaster.controller.app import Operator
from trainmaster.controller.cache import store as store_module
from trainmaster.controller.cache.records import JobKey, Record
from trainmaster.controller.cache.store import Store
from trainmaster.controller.settings import OperatorSettings
from trainmaster.controller.watching.decoding import decodable
from trainmaster.controller.watching.resync import Resync
from trainmaster.controller.writing.status_patch import with_conditions
from trainmaster.reconciling import decide
from trainmaster.rendering import Settings

KEY = JobKey(b.NAMESPACE, "bert")
# In a fake object, for what `FakeHttp` writes in its place.
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
    """Of its own name, with what `FakeHttp` writes in its training, and where the API server notes who set that."""
    raw = b.job("strange", uid="22222222-2222-2222-2222-222222222222", training={"layers": ODD})
    raw["metadata"]["managedFields"] = [{"manager": "kubectl", "fieldsV1": {"f:spec": ODD}}]
    return raw


@asynccontextmanager
async def operating(folder: Path, http: FakeHttp) -> AsyncIterator[Operator]:
    settings = OperatorSettings(
        kubeconfig=kubeconfig(folder, http.url), leader_elect=False, metrics_port=None, resync_seconds=0.2
    )
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
    """In the first list, in kopf's list and watch, in the answer to a write, and for the operator that comes next."""
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


class Broken(Exception):
    """A reader's mistake."""


def test_what_no_reader_has_foreseen_is_said_and_counted_once_and_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counted: list[str] = []
    store = Store(lambda key: None, KEYS)
    store.unreadable.count = counted.append
    cluster = FakeCluster()

    def broken(*_: Any) -> None:
        raise Broken("odd\nvalue")

    store.upsert(JOBS, cluster.put(JOBS, b.job()))
    store.upsert(STATEFUL_SETS, cluster.put(STATEFUL_SETS, b.child("StatefulSet")))
    with monkeypatch.context() as patched:
        patched.setattr(store_module, "pod_view", broken)
        raw = cluster.put(PODS, b.pod(0))
        for _ in range(3):
            store.upsert(PODS, raw)
    store.upsert(PODS, cluster.put(PODS, b.pod(1)))
    snapshot = store.snapshot(KEY)
    assert snapshot is not None
    assert [pod.worker for pod in snapshot.observed.pods] == [1]
    assert counted == ["Pod"]
    assert caplog.text.count("Pod team-a/bert-0 is passed over: the object can't be read") == 1


@pytest.mark.parametrize("raw", [None, 3, [], {}, {"metadata": 3}, {"metadata": {"name": [1], "labels": []}}])
@pytest.mark.parametrize("resource", [JOBS, PODS])
def test_what_is_no_object_is_passed_over(resource: Any, raw: Any) -> None:
    store = Store(lambda key: None, KEYS)
    store.upsert(resource, raw)
    store.delete(resource, raw)
    assert len(store) == 0


def test_a_job_that_no_reader_has_foreseen_says_so_and_keeps_its_past(monkeypatch: pytest.MonkeyPatch) -> None:
    store, cluster = Store(lambda key: None, KEYS), FakeCluster()

    def broken(*_: Any) -> None:
        raise Broken("odd value")

    past: dict[str, Any] = {
        "attempt": 7,
        "restarts": "many",
        "conditions": [
            {"type": "Running", "status": "Perhaps"},
            {"type": "Suspended", "status": "False", "reason": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ],
    }
    with monkeypatch.context() as patched:
        patched.setattr(Record, "parse", broken)
        store.upsert(JOBS, cluster.put(JOBS, b.job()))
    snapshot = store.snapshot(KEY)
    assert snapshot is not None
    assert str(snapshot.job.unreadable).startswith("the job can't be read (Broken('odd value'))")
    store.upsert(JOBS, cluster.put(JOBS, b.job(status=past)))
    snapshot = store.snapshot(KEY)
    assert snapshot is not None
    status = decide(snapshot.job, snapshot.observed, 1_000.0, Settings()).status
    patch = with_conditions(snapshot.raw_status, status)
    # A merge patch of the conditions alone: attempt and restarts stay as they stand, and so do other conditions.
    assert patch.keys() == {"conditions"}
    assert patch["conditions"][0] == past["conditions"][0]
    added = patch["conditions"][2]
    assert (added["type"], added["status"], added["reason"]) == ("Accepted", "False", "Unreadable")
    assert added["message"].startswith("the status can't be read (conditions.0.status: Input should be 'True'")
    # Once it stands there, there is nothing more to write.
    raw = cluster.put(JOBS, b.job(status={**past, **patch}))
    store.upsert(JOBS, raw)
    again = store.snapshot(KEY)
    assert again is not None
    assert with_conditions(again.raw_status, decide(again.job, again.observed, 2_000.0, Settings()).status) == {}


async def test_a_sweep_passes_over_what_cannot_be_read_and_compares_all_others() -> None:
    cluster, store = FakeCluster(), Store(lambda key: None, KEYS)
    for index in range(3):
        cluster.put(PODS, b.pod(index))
    cluster.fail("get", PODS.plural, Unusable("GET pod", "12 bytes that aren't JSON"))
    store.upsert(PODS, b.pod(7, name="gone"))
    await Resync(cluster, store, (), interval=60.0).sweep()
    assert sorted(name for _, name, _ in store.known(PODS)) == ["bert-1", "bert-2"]


async def test_nothing_ends_the_sweeps(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster()
    resync = Resync(cluster, Store(lambda key: None, KEYS), (), interval=0.001)
    failures = iter(range(3))

    async def sweep() -> None:
        if next(failures, None) is not None:
            raise Broken("odd")
        swept.set()

    swept = asyncio.Event()
    resync.sweep = sweep  # type: ignore[method-assign]
    task = asyncio.create_task(resync.run())
    await asyncio.wait_for(swept.wait(), 10)
    task.cancel()
    assert caplog.text.count("The sweep failed.") == 3


SCALARS = st.none() | st.booleans() | st.integers() | st.text()


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8))
def test_what_can_be_decoded_is_decoded_as_it_is(value: Any) -> None:
    text = json.dumps(value)
    assert decode(text) == decode(text.encode()) == value
    assert decodable(text.encode()) == text.encode()


@given(
    st.integers(MAX_DEPTH, 3_000),
    st.sampled_from(["[", '{"a":[', '[{"\\"]}":']),
    st.text(st.characters(exclude_categories=["Cs"])),
)
def test_below_a_depth_that_no_job_has_there_is_null_and_all_else_is_whole(
    depth: int, opening: str, other: str
) -> None:
    closing = {"[": "]", '{"a":[': "]}", '[{"\\"]}":': "}]"}[opening]
    deep = opening * depth + "1" + closing * depth
    text = json.dumps({"items": [{"metadata": {"name": other}}, {"spec": "@"}, {"after": other}]}).replace('"@"', deep)
    document = decode(text)
    assert document["items"][0]["metadata"]["name"] == document["items"][2]["after"] == other
    assert json.loads(decodable(text.encode())) == document


def test_numbers_beyond_all_meaning_are_no_reason_to_lose_a_page() -> None:
    document = decode('{"a": 1, "b": ' + "9" * 5_000 + ', "c": -' + "9" * 5_000 + "}")
    assert document == {"a": 1, "b": float("inf"), "c": float("-inf")}


@given(st.binary())
def test_bytes_that_are_no_json_are_refused(raw: bytes) -> None:
    try:
        decode(raw)
    except json.JSONDecodeError:
        return


def test_a_watch_line_that_is_no_json_is_left_out() -> None:
    assert decodable(b"[" * 5_000) == b""

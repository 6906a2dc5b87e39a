"""`cache.unreadable`, `apiserver.decoding`, `watching.resync`: an object that can't be read costs only itself."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.fake_cluster import FakeCluster
from tests.unit.controller.world import BaseWorld, snapshot_of
from trainmaster_operator.api.json_codec import MAX_DEPTH, decode
from trainmaster_operator.controller.apiserver.cluster import JOBS, PODS, STATEFUL_SETS
from trainmaster_operator.controller.apiserver.errors import Unusable
from trainmaster_operator.controller.cache import job_objects
from trainmaster_operator.controller.cache import store as store_module
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.watching.resync import WATCHED, Resync
from trainmaster_operator.controller.writing.status import with_conditions
from trainmaster_operator.reconciling import decide
from trainmaster_operator.rendering import Settings


class Broken(Exception):
    """Stands for a mistake in a reader."""


def test_what_no_reader_has_foreseen_is_logged_and_counted_once_and_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counted: list[str] = []
    store = Store(lambda key: None, KEYS, count_unreadable=counted.append)
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
    snapshot = snapshot_of(store)
    assert [pod.worker for pod in snapshot.observed.pods] == [1]
    assert counted == ["Pod"]
    assert caplog.text.count("Pod team-a/bert-0 can't be used: the object can't be read") == 1


@pytest.mark.parametrize("raw", [None, 3, [], {}, {"metadata": 3}, {"metadata": {"name": [1], "labels": []}}])
@pytest.mark.parametrize("resource", [JOBS, PODS])
def test_what_is_no_object_is_passed_over(resource: Any, raw: Any) -> None:
    store = Store(lambda key: None, KEYS)
    store.upsert(resource, raw)
    store.delete(resource, raw)
    assert len(store) == 0


def test_a_job_that_no_reader_has_foreseen_has_a_condition_and_keeps_its_past(monkeypatch: pytest.MonkeyPatch) -> None:
    world = BaseWorld()

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
        patched.setattr(job_objects, "read_spec", broken)
        world.put(JOBS, b.job())
    snapshot = world.snapshot()
    assert str(snapshot.job.unreadable).startswith("the job can't be read (Broken('odd value'))")
    world.put(JOBS, b.job(status=past))
    snapshot = world.snapshot()
    status = decide(snapshot.job, snapshot.observed, 1_000.0, Settings()).status
    patch = with_conditions(snapshot.raw_status, status)
    # The merge patch changes only the conditions: attempt, restarts and other conditions stay the same.
    assert patch.keys() == {"conditions"}
    assert patch["conditions"][0] == past["conditions"][0]
    added = patch["conditions"][2]
    assert (added["type"], added["status"], added["reason"]) == ("Accepted", "False", "Unreadable")
    assert added["message"].startswith("the status can't be read (conditions.0.status: Input should be 'True'")
    # Once it stands there, there is nothing more to write.
    world.put(JOBS, b.job(status={**past, **patch}))
    again = world.snapshot()
    assert with_conditions(again.raw_status, decide(again.job, again.observed, 2_000.0, Settings()).status) == {}


async def test_a_sweep_passes_over_what_cannot_be_read_and_compares_all_others() -> None:
    cluster, store = FakeCluster(), Store(lambda key: None, KEYS)
    for index in range(3):
        cluster.put(PODS, b.pod(index))
    cluster.fail("get", PODS.plural, Unusable("GET pod", "12 bytes that aren't JSON"))
    store.upsert(PODS, b.pod(7, name="gone"))
    await Resync(cluster, store, [*WATCHED], (), interval=60.0).sweep()
    assert sorted(name for _, name, _ in store.known(PODS)) == ["bert-1", "bert-2"]


async def test_nothing_ends_the_sweeps(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster()
    resync = Resync(cluster, Store(lambda key: None, KEYS), [*WATCHED], (), interval=0.001)
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


def test_numbers_beyond_all_meaning_are_no_reason_to_lose_a_page() -> None:
    document = decode('{"a": 1, "b": ' + "9" * 5_000 + ', "c": -' + "9" * 5_000 + "}")
    assert document == {"a": 1, "b": float("inf"), "c": float("-inf")}


@given(st.binary())
def test_bytes_that_are_no_json_are_refused(raw: bytes) -> None:
    try:
        decode(raw)
    except json.JSONDecodeError:
        return

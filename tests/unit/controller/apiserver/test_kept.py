"""`apiserver.kept`: readers get the same from a trimmed object as from the whole one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given

from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.cache.test_hostile_objects import EVENT, POD, SET, WORKLOAD
from tests.unit.controller.fake_cluster import FakeCluster
from tests.unit.controller.world import KEY
from tests.unit.hostile_json import damaged
from trainmaster_operator.api.trimming import LEFT_OUT, prune
from trainmaster_operator.controller.apiserver import kept
from trainmaster_operator.controller.apiserver.cluster import (
    CHILDREN,
    GANGS,
    JOBS,
    LARGE_JOBS,
    PODS,
    STATEFUL_SETS,
    Resource,
)
from trainmaster_operator.controller.apiserver.kept import _Lines, decoded
from trainmaster_operator.controller.cache.job_objects import MAX_STATUS_BYTES
from trainmaster_operator.controller.cache.large_jobs import LargeJobs, LargeJobThread
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.cache.views import child_view, controller_of, event_time, label, pod_view
from trainmaster_operator.controller.watching.resync import WATCHED, Resync
from trainmaster_operator.wire.names import JOB_NAME_LABEL
from trainmaster_operator.wire.values import mapping

TEMPLATE = {
    "metadata": POD["metadata"],
    "spec": {
        "volumes": [{"name": "trainmaster-agent", "configMap": {"name": "trainmaster-agent-0123456789ab"}}],
        "initContainers": [{"name": "trainmaster-agent", "image": "r/operator:1", "imagePullPolicy": "Always"}],
    },
}
WROTE = [{"manager": "trainmaster", "operation": "Update", "fieldsV1": {"f:spec": {}}}]
CHILD = {
    "metadata": {**SET["metadata"], "managedFields": WROTE},
    "spec": {**SET["spec"], "template": TEMPLATE},
    **{name: WORKLOAD[name] for name in ("status",)},
}


def kept_of(resource: Resource, raw: Any) -> Any:
    assert resource.kept is not None
    return prune(raw, resource.kept)


@given(damaged(POD))
def test_a_pod(raw: Any) -> None:
    trimmed = mapping(kept_of(PODS, raw))
    raw = mapping(raw)
    assert pod_view(trimmed, KEYS) == pod_view(raw, KEYS)
    for read in (lambda metadata: label(metadata, JOB_NAME_LABEL), lambda metadata: controller_of(metadata).get("uid")):
        assert read(mapping(trimmed.get("metadata"))) == read(mapping(raw.get("metadata")))


@pytest.mark.parametrize("kind", CHILDREN)
@given(damaged({**CHILD, "spec": {**CHILD["spec"], **WORKLOAD["spec"]}}))
def test_a_child(kind: str, raw: Any) -> None:
    trimmed = mapping(kept_of(CHILDREN[kind], raw))
    assert child_view(kind, trimmed, KEYS) == child_view(kind, mapping(raw), KEYS)


@given(damaged(EVENT))
def test_an_event(raw: Any) -> None:
    assert event_time(mapping(prune(raw, kept.EVENT))) == event_time(mapping(raw))


def test_a_job_is_whole_but_for_what_is_large() -> None:
    job = b.job(status={"phase": "Running", "attempt": 1})
    assert kept_of(JOBS, job) == job
    large = b.job(status={"conditions": [], "notes": "a" * MAX_STATUS_BYTES}, args=["a" * 10_000])
    trimmed = kept_of(JOBS, large)
    assert trimmed == {"metadata": large["metadata"], "status": {"conditions": []}, LEFT_OUT: ["spec", "status"]}


async def test_a_job_whose_spec_was_left_out_is_read_apart_and_one_without_its_status_has_no_past() -> None:
    cluster, thread = FakeCluster(), LargeJobThread()
    reader = LargeJobs(cluster, thread)
    store = Store(lambda key: None, KEYS, read_large=reader.add)
    made = cluster.put(JOBS, b.job(args=["a" * 10_000], status={"attempt": 3, "phase": "Running"}))
    store.upsert(JOBS, kept_of(JOBS, made))
    assert store.snapshot(KEY) is None and store.awaits_spec(KEY)
    await reader._read(store, KEY)
    found = store.snapshot(KEY)
    assert (
        found is not None and found.job.large and found.job.spec is not None and found.job.spec.args == ["a" * 10_000]
    )
    assert found.job.status.attempt == 3
    cluster.put(JOBS, {**made, "status": {"attempt": 3, "notes": "a" * MAX_STATUS_BYTES}})
    store.upsert(JOBS, await cluster.get(JOBS, *KEY.__dict__.values()))
    found = store.snapshot(KEY)
    assert found is not None and str(MAX_STATUS_BYTES) in str(found.job.unreadable)
    await thread.close()


async def test_a_field_that_no_legal_job_has_so_large_is_refused_unread() -> None:
    cluster, thread = FakeCluster(), LargeJobThread()
    store = Store(lambda key: None, KEYS, read_large=lambda key: None)
    for field, sentence in (("training", "spec.training: has more than 524288 bytes"), ("env", "spec: has more")):
        given = {"training": {"data": ["a" * 500] * 2_000}} if field == "training" else {"args": ["a" * 500] * 300}
        store.upsert(JOBS, kept_of(JOBS, cluster.put(JOBS, b.job(**given))))
        assert (await cluster.get(LARGE_JOBS, *KEY.__dict__.values()))["spec"][LEFT_OUT]
        await LargeJobs(cluster, thread)._read(store, KEY)
        found = store.snapshot(KEY)
        assert found is not None and found.job.invalid is not None and sentence in found.job.invalid.message
    await thread.close()


class Content:
    """Yields an answer's body in pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


async def test_a_page_and_a_watch_are_trimmed_as_they_come() -> None:
    large = {**POD, "spec": {"nodeName": "n", "containers": [{"env": [{"name": "A", "value": "x"}] * 20_000}]}}
    page = json.dumps({"kind": "PodList", "metadata": {"continue": "more"}, "items": [large, POD]}).encode()
    found = await decoded(Content(page[:70_000], page[70_000:]), kept.listed(kept.POD))  # type: ignore[arg-type]
    assert found["metadata"] == {"continue": "more"}
    assert found["items"] == [kept_of(PODS, POD)] * 2 and found["items"][0]["spec"] == {"nodeName": "n"}
    gone = {"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired"}}
    mark = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "7"}}}
    lines = [json.dumps(line).encode() + b"\n" for line in ({"type": "ADDED", "object": large}, mark, gone)]
    text = b"".join((lines[0], b'{"type": "ADDED", ]}\n', lines[1], lines[2]))
    content = Content(*(text[at : at + 10_000] for at in range(0, len(text), 10_000)))
    lines_kept = [line async for line in _Lines(content, kept.POD).iter_chunked(1)]  # type: ignore[arg-type]
    events = [json.loads(line) for line in filter(None, lines_kept)]
    assert events[0] == {"type": "ADDED", "object": kept_of(PODS, POD)}
    assert events[1] == mark and events[2]["object"]["code"] == 410 and len(events) == 3


async def test_a_sweep_reads_no_object_that_is_nobody_s() -> None:
    cluster = FakeCluster()
    store = Store(lambda key: None, KEYS)
    for number in range(20):
        foreign = b.pod(number, uid=f"foreign-{number}")
        foreign["metadata"]["ownerReferences"] = []
        cluster.put(PODS, foreign)
    resync = Resync(cluster, store, [*WATCHED], (), interval=60.0)
    await resync.fill()
    await resync.sweep()
    assert len(store) == 0 and cluster.calls["get", "Pod"] == 0
    cluster.put(STATEFUL_SETS, b.child("StatefulSet"))
    await asyncio.sleep(0)
    await resync.sweep()
    assert len(store) == 1 and cluster.calls["get", "StatefulSet"] == 1


def test_every_watched_type_keeps_something_less_than_everything() -> None:
    for resource in (JOBS, PODS, *CHILDREN.values(), *GANGS.values()):
        assert resource.kept is not None and "managedFields" not in str(kept.metadata_of(kept.POD)), resource

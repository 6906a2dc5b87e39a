"""`cache.large_jobs`: a large job costs only itself. It is decided on separately, and the kept part is small."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.fake_cluster import FakeCluster
from tests.unit.controller.polling import until
from tests.unit.controller.world import KEY, snapshot_of
from trainmaster_operator.api.v1alpha1 import JobSpec
from trainmaster_operator.controller.apiserver.cluster import JOBS
from trainmaster_operator.controller.apiserver.errors import Unavailable
from trainmaster_operator.controller.cache.job_objects import MAX_STATUS_BYTES
from trainmaster_operator.controller.cache.large_jobs import LargeJobs, LargeJobThread
from trainmaster_operator.controller.cache.records import JobKey, Snapshot, SpecVersion, read_spec
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.observability.metrics import OperatorMetrics
from trainmaster_operator.controller.reconciler import Reconciler
from trainmaster_operator.controller.workqueue import WorkQueue
from trainmaster_operator.reconciling import decide
from trainmaster_operator.reconciling.actions.children import hashes_of, last_hashes
from trainmaster_operator.reconciling.decision import Decision
from trainmaster_operator.reconciling.observed.snapshot import InvalidSpec, Job
from trainmaster_operator.rendering import Settings

KIB = 1024
# 25 lists of 1,000 mappings each make 390 KiB of JSON.
MAPPINGS: dict[str, Any] = {"training": {"data": [[{"a": n} for n in range(1000)] for _ in range(25)]}}
# An environment variable in each item makes 220 KiB.
VARIABLES: dict[str, Any] = {
    "podTemplate": {
        "spec": {
            "containers": [
                {"name": f"side-{one}", "env": [{"name": f"V{n}", "value": "x"} for n in range(600)]}
                for one in range(10)
            ]
        }
    }
}
ANNOTATIONS = {f"team.example.com/{n}": "a" * 1000 for n in range(250)}


def large(version: int = 1, *, uid: str = b.JOB_UID, **spec: Any) -> dict[str, Any]:
    raw = b.job(uid=uid, **spec)
    managed = [{"manager": "kubectl", "fieldsV1": {f"f:{n}": {} for n in range(5_000)}}]
    raw["metadata"] |= {
        "resourceVersion": str(version),
        "annotations": dict(ANNOTATIONS),
        "managedFields": managed,
        "creationTimestamp": "2026-11-22T04:00:00Z",
    }
    return raw


def size_of(root: object) -> int:
    """Returns the bytes of an object and of everything that only it refers to, except types and modules."""
    seen, waiting, size = {id(root)}, [root], 0
    while waiting:
        one = waiting.pop()
        size += sys.getsizeof(one)
        for inner in gc.get_referents(one):
            if (
                id(inner) not in seen
                and not isinstance(inner, type)
                and type(inner).__name__ not in ("module", "function")
            ):
                seen.add(id(inner))
                waiting.append(inner)
    return size


@pytest.mark.parametrize("spec", [MAPPINGS, VARIABLES], ids=["training", "podTemplate"])
def test_a_large_job_is_kept_in_a_few_kibibytes(spec: dict[str, Any]) -> None:
    """As Python objects they took megabytes."""
    store = Store(lambda key: None, KEYS)
    store.upsert(JOBS, large(**spec))
    kept = size_of(store.snapshot(KEY))
    other = Store(lambda key: None, KEYS)
    other.upsert(JOBS, b.job())
    assert kept - size_of(other.snapshot(KEY)) < 64 * KIB


def test_nothing_holds_the_spec_of_a_job_that_is_gone() -> None:
    """Renderings were cached by keys that held the spec, so 12 jobs, created and deleted, kept 345 MB."""
    store, metrics = Store(lambda key: None, KEYS), OperatorMetrics()
    specs: list[weakref.ref[JobSpec]] = []
    for n in range(12):
        raw = large(10 * n + 1, uid=f"uid-{n}", training={"lr": 0.1})
        store.upsert(JOBS, raw)
        snapshot = snapshot_of(store)
        assert snapshot.job.spec is not None
        specs.append(weakref.ref(snapshot.job.spec))
        first = decide(snapshot.job, snapshot.observed, 1_795_000_000.0, Settings())
        raw = {**raw, "status": first.status.model_dump(by_alias=True, exclude_none=True)}
        raw["metadata"]["resourceVersion"] = str(10 * n + 2)
        store.upsert(JOBS, raw)
        snapshot = snapshot_of(store)
        assert decide(snapshot.job, snapshot.observed, 1_795_000_000.0, Settings()).actions
        metrics.count_jobs(store.jobs())
        store.delete(JOBS, raw)
        del snapshot, first
    gc.collect()
    assert [spec() for spec in specs] == [None] * 12


def test_hashes_are_remembered_by_the_very_spec_and_forgotten_with_it() -> None:
    one, other = (JobSpec.model_validate({"command": ["x"], "workers": 1}) for _ in range(2))
    keys: list[Any] = ["first", "second", "third"]
    for key in keys:
        hashes_of(one).append((key, (("Service", key, "hash"),)))
    # The last two: a job's renderings follow each other.
    assert [key for key, _ in hashes_of(one)] == keys[1:]
    assert not hashes_of(other)
    identity = id(one)
    assert identity in last_hashes
    del one
    gc.collect()
    assert identity not in last_hashes


class World:
    """Holds a store whose large jobs the test reads."""

    def __init__(self) -> None:
        self.changes: list[JobKey] = []
        self.asked: list[JobKey] = []
        self.store = Store(self.changes.append, KEYS, read_large=self.asked.append)

    def read(self, raw: dict[str, Any], generation: int = 1) -> None:
        self.store.record_spec(KEY, SpecVersion(raw["metadata"]["uid"], generation), read_spec(raw, "bert"))

    def snapshot(self) -> Snapshot:
        return snapshot_of(self.store)


def test_a_large_job_is_not_read_where_it_comes_in() -> None:
    world = World()
    world.store.upsert(JOBS, large(1, **MAPPINGS))
    assert (world.asked, world.changes, world.store.snapshot(KEY)) == ([KEY], [], None)
    # A sweep of the store finds the job.
    assert [name for _, name, _ in world.store.known(JOBS)] == ["bert"]
    world.read(large(1, **MAPPINGS))
    assert world.snapshot().job.spec is not None
    assert world.snapshot().job.large
    assert world.changes == [KEY]


def test_a_job_of_common_size_is_read_at_once() -> None:
    world = World()
    world.store.upsert(JOBS, large(1, training={"epochs": 3, "words": ["a"] * 100}))
    assert world.asked == []
    assert not world.snapshot().job.large


def test_what_happens_to_a_job_while_it_is_read_is_not_lost() -> None:
    world = World()
    world.store.upsert(JOBS, large(1, **MAPPINGS))
    world.store.upsert(JOBS, large(2, status={"attempt": 4}, **MAPPINGS))
    world.read(large(1, **MAPPINGS))
    assert world.snapshot().job.status.attempt == 4
    assert world.snapshot().version.resource_version == "2"
    # From now on only its status is read, at once.
    world.store.upsert(JOBS, large(3, status={"attempt": 5}, **MAPPINGS))
    assert world.snapshot().job.status.attempt == 5
    assert not world.store.awaits_spec(KEY)


def test_an_answer_to_our_own_write_shows_at_once_while_a_new_spec_is_read() -> None:
    """No later pass may see the previous attempt, or the job would be decided on twice."""
    world = World()
    world.store.upsert(JOBS, large(1, **MAPPINGS))
    world.read(large(1, **MAPPINGS))
    changed = large(2, workers=3, status={"attempt": 2}, **MAPPINGS)
    changed["metadata"]["generation"] = 2
    world.store.upsert(JOBS, changed)
    job = world.snapshot().job
    assert (job.status.attempt, job.generation, job.spec.workers if job.spec else None) == (2, 1, 2)
    # The result for the previous generation is no longer of use.
    world.read(large(1, **MAPPINGS))
    assert world.snapshot().job.generation == 1
    world.read(changed, generation=2)
    job = world.snapshot().job
    assert (job.generation, job.spec.workers if job.spec else None) == (2, 3)


def test_a_job_that_is_deleted_or_replaced_while_it_is_read_does_not_come_back() -> None:
    world = World()
    world.store.upsert(JOBS, large(1, **MAPPINGS))
    world.store.delete(JOBS, large(2, **MAPPINGS))
    world.read(large(1, **MAPPINGS))
    assert world.store.snapshot(KEY) is None
    world.store.upsert(JOBS, large(3, uid="another", **MAPPINGS))
    world.read(large(1, **MAPPINGS))
    assert world.store.snapshot(KEY) is None


def test_a_large_job_that_cant_run_has_a_reason() -> None:
    world = World()
    raw = large(1, podTemplate={"spec": {"tolerations": [{"key": f"k{n}"} for n in range(20_000)]}})
    world.store.upsert(JOBS, raw)
    world.read(raw)
    assert world.snapshot().job.invalid == InvalidSpec(
        "spec.podTemplate.spec.tolerations: has 20000 items; use at most 1000"
    )


def test_a_status_beyond_all_measure_is_not_kept() -> None:
    world = World()
    world.store.upsert(JOBS, large(1, status={"attempt": 1, "notes": "a" * MAX_STATUS_BYTES}))
    snapshot = snapshot_of(world.store)
    assert str(snapshot.job.unreadable).startswith("the status can't be read (it has more than 262144 bytes)")
    assert snapshot.raw_status == {"conditions": []}
    world.store.upsert(JOBS, large(2, status={"attempt": 1}))
    assert world.snapshot().job.status.attempt == 1


async def test_large_jobs_are_read_one_by_one_and_again_when_that_fails() -> None:
    cluster, thread = FakeCluster(), LargeJobThread()
    reader = LargeJobs(cluster, thread)
    store = Store(lambda key: None, KEYS, read_large=reader.add)
    for name in ("one", "two"):
        store.upsert(JOBS, cluster.put(JOBS, b.job(name, uid=name, **MAPPINGS)))
    store.upsert(JOBS, b.job("gone", uid="gone", **MAPPINGS))
    cluster.fail("get", JOBS.plural, Unavailable("GET jobs", "try later", status=503))
    task = asyncio.create_task(reader.run(store))
    try:
        await until(lambda: len(list(store.jobs())) == 2)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await thread.close()
    # Each job is read once, one again after the failure, and one that doesn't exist.
    assert cluster.calls["get", "DistributedTrainingJob"] == 4
    assert all(job.spec is not None for job in store.jobs())


async def test_no_worker_waits_while_large_jobs_are_decided_on() -> None:
    """Ten of them hold the thread until a small job, added last, has had its pass on one of the two workers."""
    small_done, threads = threading.Event(), dict[str, str]()

    def blocking(job: Job, observed: Any, now: float, settings: Settings) -> Decision:
        threads[job.name] = threading.current_thread().name
        if job.large:
            assert small_done.wait(30)
        else:
            small_done.set()
        return Decision(job.status)

    async def nothing(*arguments: Any) -> Any:
        return None

    async def execute(*arguments: Any) -> Any:
        return SimpleNamespace(wrote_status=False, retry_after=None)

    queue: WorkQueue[JobKey] = WorkQueue()
    store, thread = Store(queue.add, KEYS), LargeJobThread()
    lookups = cast(Any, SimpleNamespace(before_decision=nothing, after_decision=nothing))
    streams = cast(Any, SimpleNamespace(expect=lambda *_: None, watch=lambda *_: None))
    reconciler = Reconciler(
        store,
        queue,
        cast(Any, SimpleNamespace(execute=execute)),
        streams,
        lookups,
        OperatorMetrics(),
        blocking,
        Settings(),
        forget=(),
        thread=thread,
    )
    for n in range(10):
        store.upsert(JOBS, b.job(f"large-{n}", uid=f"large-{n}", **MAPPINGS))
    store.upsert(JOBS, b.job("small", uid="small"))
    workers = [asyncio.create_task(work()) for work in (reconciler.work, reconciler.work, reconciler.work_large)]
    await until(lambda: len(threads) == 11)
    queue.close()
    await asyncio.gather(*workers)
    await thread.close()
    assert threads.pop("small") == threading.current_thread().name
    assert set(threads.values()) == {"large jobs_0"}

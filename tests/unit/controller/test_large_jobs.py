"""What is kept of a large job is small, and gone with the job."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest

from tests.unit.controller import builders as b
from trainmaster.api.v1alpha1 import JobSpec
from trainmaster.controller.cluster import JOBS
from trainmaster.controller.metrics import OperatorMetrics
from trainmaster.controller.records import JobKey
from trainmaster.controller.store import Store
from trainmaster.reconciling import decide
from trainmaster.reconciling.children import RememberedHashes
from trainmaster.rendering import Settings

KEY = JobKey(b.NAMESPACE, "bert")
KIB = 1024
# 390 KiB of JSON, 1,000 mappings in each of 25 lists.
MAPPINGS = {"training": {"data": [[{"a": n} for n in range(1000)] for _ in range(25)]}}
# 220 KiB, an environment variable in each item.
VARIABLES = {
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
    """Bytes of an object and of all that only it leads to, types and modules apart."""
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
    """As Python's objects they were megabytes."""
    store = Store(lambda key: None)
    store.note(JOBS, large(**spec))
    kept = size_of(store.snapshot(KEY))
    other = Store(lambda key: None)
    other.note(JOBS, b.job())
    assert kept - size_of(other.snapshot(KEY)) < 64 * KIB


def test_nothing_holds_the_spec_of_a_job_that_is_gone() -> None:
    """Renderings were remembered by keys that held the spec: twelve jobs made and deleted kept 345 MB."""
    store, metrics = Store(lambda key: None), OperatorMetrics()
    specs: list[weakref.ref[JobSpec]] = []
    for n in range(12):
        raw = large(10 * n + 1, uid=f"uid-{n}", training={"lr": 0.1})
        store.note(JOBS, raw)
        snapshot = store.snapshot(KEY)
        assert snapshot is not None
        assert snapshot.job.spec is not None
        specs.append(weakref.ref(snapshot.job.spec))
        first = decide(snapshot.job, snapshot.observed, 1_795_000_000.0, Settings())
        raw = {**raw, "status": first.status.model_dump(by_alias=True, exclude_none=True)}
        raw["metadata"]["resourceVersion"] = str(10 * n + 2)
        store.note(JOBS, raw)
        snapshot = store.snapshot(KEY)
        assert snapshot is not None
        assert decide(snapshot.job, snapshot.observed, 1_795_000_000.0, Settings()).actions
        metrics.count_jobs(store.jobs())
        store.note_deleted(JOBS, raw)
        del snapshot, first
    gc.collect()
    assert [spec() for spec in specs] == [None] * 12


def test_hashes_are_remembered_by_the_very_spec_and_forgotten_with_it() -> None:
    remembered = RememberedHashes()
    one, other = (JobSpec.model_validate({"command": ["x"], "workers": 1}) for _ in range(2))
    keys: list[Any] = ["first", "second", "third"]
    for key in keys:
        remembered.put(one, key, (("Service", key, "hash"),))
    # The last two: a job's renderings follow each other.
    assert remembered.get(one, keys[0]) is None
    assert remembered.get(one, keys[2]) == (("Service", "third", "hash"),)
    assert remembered.get(other, keys[2]) is None
    del one
    gc.collect()
    assert len(remembered) == 0

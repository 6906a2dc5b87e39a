"""Nothing is dropped silently: each leaf of a manifest has an answer, and a kept value is where the answer says."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.converting.manifests import (
    NAMES,
    TORCHRUN,
    converted,
    job_set,
    pod,
    pytorch_job,
    replicated,
    runtime,
    train_job,
)
from trainmaster.converting import can_convert, convert, dotted, is_runtime
from trainmaster.converting.fields import Field
from trainmaster_operator.api.parsing import InvalidJob, parse_job

_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-1, 9), st.sampled_from(["", "x", "8", "auto", "Never"]))
_ANYTHING = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)


# Each change has the number of a place in a manifest, an action, a name and a value.
_CHANGES = st.lists(
    st.tuples(st.integers(0, 999), st.sampled_from(["replace", "remove", "add"]), st.sampled_from(NAMES), _ANYTHING),
    max_size=3,
)


def changed(manifest: Any, changes: list[tuple[int, str, str, Any]]) -> Any:
    """Returns a manifest with a field or two replaced, removed or added."""
    made = copy.deepcopy(manifest)
    for number, how, name, value in changes:
        places = list(_places(made))
        if not places:
            continue
        holder, key = places[number % len(places)]
        if how == "replace":
            holder[key] = value
        elif how == "remove":
            del holder[key]
        elif isinstance(holder, dict):
            holder[name] = value
    return made


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields, for each field, the mapping or list that contains it, and its key there."""
    for key, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if key not in ("apiVersion", "kind"):
            yield value, key
            if isinstance(each, dict | list):
                yield from _places(each)


def wrong_with(job: Any) -> set[str]:
    """Returns the problems that validation finds in a job."""
    try:
        parse_job(job)
    except InvalidJob as error:
        return {str(each) for each in error.problems}
    return set()


SHM = {"name": "shm", "emptyDir": {"medium": "Memory"}}
TEMPLATE = pod(
    ["bash", "-c", "torchrun --nproc_per_node=2 train.py"],
    "node",
    env=[{"name": "RANK", "value": "1"}, {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
    resources={"limits": {"nvidia.com/gpu": 2, "cpu": 4, "memory": "8Gi"}, "requests": {"cpu": 2, "memory": "4Gi"}},
    volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}],
    pod_fields={"volumes": [SHM], "tolerations": [{"key": "gpu", "operator": "Exists"}]},
)
MANIFESTS = [
    [
        pytorch_job(
            {
                "nprocPerNode": "2",
                "runPolicy": {"backoffLimit": 2, "cleanPodPolicy": "All", "schedulingPolicy": {"queue": "q"}},
                "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4},
            },
            Master={"replicas": 1, "restartPolicy": "OnFailure", "template": TEMPLATE},
            Worker={"replicas": 2, "restartPolicy": "Never", "template": TEMPLATE},
        )
    ],
    [
        train_job(
            "ours",
            trainer={"numNodes": 2, "numProcPerNode": 2, "env": [{"name": "A", "value": "1"}]},
            initializer={"dataset": {"storageUri": "hf://x"}},
            podTemplateOverrides=[{"targetJobs": [{"name": "node"}], "spec": {"serviceAccountName": "x"}}],
        ),
        runtime(replicated("dataset-initializer", TEMPLATE), replicated("node", TEMPLATE)),
    ],
    [
        job_set(
            replicated("driver", TEMPLATE, {"backoffLimit": 1}),
            replicated("node", pod(["python", "x.py"]), {"parallelism": 2, "completions": 2}, replicas=2),
            failurePolicy={"maxRestarts": 1, "rules": [{"action": "FailJobSet", "targetReplicatedJobs": ["node"]}]},
            successPolicy={"operator": "All", "targetReplicatedJobs": ["driver"]},
            volumeClaimPolicies=[{"templates": [{"metadata": {"name": "data"}, "spec": {}}]}],
        )
    ],
]


@given(manifests=st.sampled_from(MANIFESTS), changes=st.lists(_CHANGES, min_size=2, max_size=2))
def test_every_leaf_is_answered(manifests: list[Any], changes: list[Any]) -> None:
    given_ = [changed(manifest, some) for manifest, some in zip(manifests, changes, strict=False)]
    for conversion in convert(given_):
        if conversion.notes is None:
            assert not can_convert(given_[conversion.manifest])
            continue
        if not conversion.documents:
            assert is_runtime(given_[conversion.manifest])
            continue
        told = {(note.manifest, note.field) for note in conversion.notes}
        for leaf in Field(given_[conversion.manifest]).leaves():
            assert any((conversion.manifest, leaf.path[:end]) in told for end in range(len(leaf.path) + 1)), leaf
        for note in conversion.notes:
            assert note.answer.outcome != "kept" or all(value is not None for _, value in note.became) or not note.value
            assert note.answer.text or note.answer.outcome == "kept"
        lacks = {note.answer.text for note in conversion.notes if not note.field}
        assert wrong_with(conversion.documents[-1]) <= lacks


@given(value=_ANYTHING)
def test_what_is_no_job_stays_as_it_is(value: Any) -> None:
    [conversion] = convert([value])
    assert (conversion.documents, conversion.notes) == ((value,), None)


def test_a_runtime_is_told_with_the_job_that_uses_it() -> None:
    used, unused = runtime(replicated("node", TEMPLATE)), runtime(replicated("node", TEMPLATE), name="other")
    first, second, job = convert([used, unused, train_job("ours")])
    assert (first.documents, first.notes) == ((), ())
    assert second.notes is not None and [note.answer.outcome for note in second.notes] == ["refused"]
    assert job.notes is not None and {note.manifest for note in job.notes} == {0, 2}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"volumes": [{"name": "A_B", "emptyDir": {}}]}, "volumes[0].name"),
        ({"hostNetwork": "yes"}, "hostNetwork"),
        ({"tolerations": [{"key": "a", "operator": "Exists"}, "x"]}, "tolerations[1]"),
    ],
)
def test_what_validate_would_refuse_is_refused_and_not_written(change: dict[str, Any], field: str) -> None:
    job = pytorch_job()
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"] |= change
    [conversion] = convert([job])
    refused = {dotted(note.field) for note in conversion.notes or () if note.answer.outcome == "refused"}
    assert f"spec.pytorchReplicaSpecs.Worker.template.spec.{field}" in refused
    assert not any(word in str(conversion.documents[-1]) for word in ("A_B", "yes", "'x'"))
    assert wrong_with(conversion.documents[-1]) <= {note.answer.text for note in conversion.notes or ()}


def test_what_was_kept_is_named_where_it_stands_when_an_item_before_it_is_gone() -> None:
    container = pod(TORCHRUN, env=[{"name": "A=", "value": "1"}, {"name": "B", "value": "2"}])
    made = converted(pytorch_job(Worker={"replicas": 1, "template": container}))
    assert made.spec["podTemplate"]["spec"]["containers"][0]["env"] == [{"name": "B", "value": "2"}]
    env = "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].env"
    assert made.became(f"{env}[1].name") == [("spec.podTemplate.spec.containers[0].env[0].name", "B")]
    assert f"{env}[0].name" in made.refused()

"""Nothing is dropped silently: every leaf of a manifest is answered, and what was kept is where the answer says."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.converting.manifests import NAMES, job_set, pod, pytorch_job, replicated, runtime, train_job
from trainmaster.api.parsing import InvalidJob, parse_job
from trainmaster.converting import can_convert, convert, dotted, is_runtime
from trainmaster.converting.fields import Field

_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-1, 9), st.sampled_from(["", "x", "8", "auto", "Never"]))
_ANYTHING = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)


# A place of a manifest by a number, what is done there, and what with.
_CHANGES = st.lists(
    st.tuples(st.integers(0, 999), st.sampled_from(["replace", "remove", "add"]), st.sampled_from(NAMES), _ANYTHING),
    max_size=3,
)


def changed(manifest: Any, changes: list[tuple[int, str, str, Any]]) -> Any:
    """A manifest of which a field or two is anything, isn't there, or is new."""
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
    """Yields the mapping or list that has each field, and its key there."""
    for key, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if key not in ("apiVersion", "kind"):
            yield value, key
            if isinstance(each, dict | list):
                yield from _places(each)


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
        if all(note.answer.outcome != "refused" for note in conversion.notes):
            parse_job(conversion.documents[-1])


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


def test_problems_that_validate_would_find_are_all_refused() -> None:
    job = pytorch_job()
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["volumes"] = [{"name": "A_B", "emptyDir": {}}]
    [conversion] = convert([job])
    assert conversion.notes is not None
    refused = {dotted(note.field): note.answer.text for note in conversion.notes if note.answer.outcome == "refused"}
    try:
        parse_job(conversion.documents[-1])
    except InvalidJob as error:
        assert {str(each) for each in error.problems} <= set(refused.values())
    assert refused

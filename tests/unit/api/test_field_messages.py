"""For any JSON value the sentences are our own, and every pattern of the schema has a hint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.api.sentences import sentences
from tests.unit.hostile_json import SCALARS
from trainmaster_operator.api.field_messages import model_in
from trainmaster_operator.api.parsing import InvalidJob, parse_job, parse_spec
from trainmaster_operator.api.problems import nearest
from trainmaster_operator.api.v1alpha1 import JobSpec, SpecModel
from trainmaster_operator.api.values import HINTS, QUANTITY_PATTERN, SHORT_EXPONENT_PATTERN, number, show

# Each of these has its own type, whose sentence names the allowed values.
OWN_SENTENCES = {QUANTITY_PATTERN, SHORT_EXPONENT_PATTERN}
# These are a Python word, an exponent, or the beginning of a regular expression.
FOREIGN = re.compile(r"Input should|pydantic|Python|\bdict\b|\bNone\b|\d[eE]\+|\^\[|\\d|\\S|\[a-z")

VALUES = SCALARS | st.just([]) | st.just({}) | st.lists(SCALARS, max_size=2) | st.just({"\ud800": 1})


def _fields(model: type[SpecModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Returns every field of the spec; a list's first item is `0`."""
    for name, info in model.model_fields.items():
        here = (*path, info.alias or name)
        yield here
        is_list = "list[" in str(info.annotation)
        if is_list:
            yield (*here, "0")
        inner = model_in(info.annotation)
        if inner is not None:
            yield from _fields(inner, (*here, "0") if is_list else here)


def _patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        for child in schema.values():
            yield from _patterns(child)
    elif isinstance(schema, list):
        for child in schema:
            yield from _patterns(child)


def _with(path: tuple[str, ...], value: Any) -> Any:
    for part in reversed(path):
        value = [value] if part == "0" else {part: value}
    return value


FIELDS = st.sampled_from(sorted(_fields(JobSpec)))


@given(FIELDS, VALUES, st.sampled_from(["", "extra", "max_restarts", "0", "\ud800"]))
def test_every_sentence_is_ours(path: tuple[str, ...], value: Any, below: str) -> None:
    wrong = {below: value} if below and path[-1] != "0" else value
    try:
        parse_spec({"workers": 1, **_with(path, wrong)}, "bert")
    except InvalidJob as error:
        for problem in error.problems:
            # keepPods allows a value with that name.
            ours = problem.message.replace("None, Failed or All", "")
            ours = ours.replace(str(value), "") if isinstance(value, str) and value else ours
            assert not FOREIGN.search(ours), str(problem)


def test_every_pattern_has_a_hint() -> None:
    found = set(_patterns(JobSpec.model_json_schema()))
    assert found & set(HINTS)
    assert found - OWN_SENTENCES - set(HINTS) == set()
    assert not [hint for hint in HINTS.values() if FOREIGN.search(hint)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (31536000.0, "31536000"),
        (1e6, "1000000"),
        (1000000, "1000000"),
        (1e-4, "0.0001"),
        (0.5, "0.5"),
        (40.0, "40"),
        (1e21, "1e21"),
        (1e-7, "1e-7"),
        (0.0, "0"),
        (-2.5, "-2.5"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
)
def test_a_number_is_shown_as_people_write_it(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("name", "meant"),
    [("maxrestarts", "maxRestarts"), ("max-restarts", "maxRestarts"), ("MAX_RESTART", "maxRestarts"), ("x", None)],
)
def test_names_are_compared_without_case_and_separators(name: str, meant: str | None) -> None:
    assert nearest(name, ["maxRestarts", "backoff"]) == meant


def test_a_very_long_name_is_compared_in_no_time() -> None:
    assert nearest("maxRestarts" * 100_000, ["maxRestarts"]) is None


@given(VALUES)
def test_every_sentence_on_what_stands_beside_the_spec_is_ours(value: Any) -> None:
    for field in ("apiVersion", "kind", "metadata", "spec"):
        job = {"apiVersion": "trainmaster.dev/v1alpha1", "kind": "DistributedTrainingJob", "metadata": {"name": "a"}}
        try:
            parse_job({**job, "spec": {"workers": 1}, field: value})
        except InvalidJob as error:
            for problem in error.problems:
                ours = problem.message.replace(repr(value), "")
                assert not FOREIGN.search(ours), str(problem)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (r"(\d+)+", r"'(\d+)+'"),
        ("it's", '"it\'s"'),
        ("a\nb\tc\x1b[2J\u202ed", r"'a\nb\tc\x1b[2J\u202ed'"),
        ("Schrödinger", "'Schrödinger'"),
    ],
)
def test_a_text_is_shown_as_it_stands_in_the_file_and_what_can_t_be_seen_is_escaped(text: str, shown: str) -> None:
    assert show(text) == shown


def test_a_pattern_is_shown_with_the_backslashes_that_it_has() -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_spec({"image": "a/b:1", "command": ["x"], "progress": {"pattern": r"(?P<step>(\d+)+)"}}, "job")
    assert str(caught.value).startswith(r"spec.progress.pattern: '(?P<step>(\d+)+)' repeats what")


MISPLACED = {
    "spec.gpus": "it belongs in spec.resources.gpus",
    "spec.gpu": "set spec.resources.gpus",
    "spec.memory": "it belongs in spec.resources.memory",
    "spec.cpu": "it belongs in spec.resources.cpu",
    "spec.maxRestarts": "it belongs in spec.failurePolicy.maxRestarts",
    "spec.max_restarts": "it belongs in spec.failurePolicy.maxRestarts",
    "spec.runPolicy.maxRestarts": "it belongs in spec.failurePolicy.maxRestarts",
    "spec.backoffLimit": "set spec.failurePolicy.maxRestarts",
    "spec.suspend": "it belongs in spec.runPolicy.suspend",
    "spec.ttlSecondsAfterFinished": "it belongs in spec.runPolicy.ttlSecondsAfterFinished",
    "spec.failurePolicy.activeDeadlineSeconds": "it belongs in spec.runPolicy.activeDeadlineSeconds",
    "spec.runPolicy.cleanPodPolicy": "set spec.runPolicy.keepPods to None, Failed or All",
    "spec.env": "it belongs in spec.podTemplate.spec.containers, as env of the one with name: worker",
    "spec.podTemplate.env": "it belongs in spec.podTemplate.spec.containers, as env of the one with name: worker",
    "spec.volumeMounts": "it belongs in spec.podTemplate.spec.containers, as volumeMounts of the one with name: worker",
    "spec.tty": "it belongs in spec.podTemplate.spec.containers, as tty of the one with name: worker",
    "spec.elastic.os": "it belongs in spec.podTemplate.spec.os",
    "spec.hostname": "the workers find each other by the StatefulSet's names; remove it",
    "spec.runPolicy.resources": "it belongs in spec.resources",
    "spec.nodeSelector": "it belongs in spec.podTemplate.spec.nodeSelector",
    "spec.volumes": "it belongs in spec.podTemplate.spec.volumes",
    "spec.tolerations": "it belongs in spec.podTemplate.spec.tolerations",
    "spec.scheduling.tolerations": "it belongs in spec.podTemplate.spec.tolerations",
    "spec.podTemplate.tolerations": "it belongs in spec.podTemplate.spec.tolerations",
    "spec.podTemplate.labels": "it belongs in spec.podTemplate.metadata.labels",
    "spec.serviceAccountName": "it belongs in spec.podTemplate.spec.serviceAccountName",
    "spec.imagePullSecrets": "it belongs in spec.podTemplate.spec.imagePullSecrets",
    "spec.priorityClassName": "it belongs in spec.scheduling.priorityClassName",
    "spec.queue": "it belongs in spec.scheduling.queue",
    "spec.claimName": "it belongs in spec.code.claim.claimName or spec.checkpoint.volume.claimName",
    "spec.checkpoint.claimName": "it belongs in spec.checkpoint.volume.claimName",
    "spec.replicas": "set spec.workers",
    "spec.numNodes": "set spec.workers",
    "spec.nprocPerNode": "set spec.processesPerWorker",
    "spec.accelerator.count": "set spec.resources.gpus",
    "spec.securityContext.fsGroup": "it belongs in spec.podTemplate.spec.securityContext",
    "spec.lr": "it belongs in spec.training",
    "spec.environment": "it belongs in spec.podTemplate.spec.containers, as env of the one with name: worker",
    "spec.ntasks-per-node": "set spec.processesPerWorker",
    "spec.resources.limits": "set gpus, cpu and memory in spec.resources",
    "spec.resources.nvidia.com/gpu": "set spec.resources.gpus",
    "spec.resources.nvidia.com/mig-1g.5gb": "set spec.resources.gpus, and spec.accelerator.resourceName to "
    "nvidia.com/mig-1g.5gb",
    "spec.restartPolicy": "set spec.failurePolicy.maxRestarts",
    "spec.runLauncher": "the workers of a job find each other by themselves; remove it",
    "spec.minAvailable": "set spec.scheduling.gang.scheduler; all workers are one gang",
    "spec.exitCodes": "it belongs in spec.failurePolicy.rules[].exitCodes",
    "spec.resourceName": "it belongs in spec.accelerator.resourceName",
    "spec.labels": "it belongs in metadata",
    "spec.kind": "it belongs at the top of the file, not indented",
    "spec.runPolicy.image": "it belongs in spec.image",
    "spec.pytorchReplicaSpecs": "set spec.workers, spec.image and spec.command; anything else of a pod belongs in "
    "spec.podTemplate",
}


@pytest.mark.parametrize(("field", "remedy"), MISPLACED.items(), ids=MISPLACED.keys())
def test_a_field_that_is_elsewhere_is_sent_there(field: str, remedy: str) -> None:
    parent, name = (field[:14], field[15:]) if "/" in field else field.rsplit(".", 1)
    *parents, last = [*parent.split(".")[1:], name]
    spec: dict[str, Any] = {last: {}}
    for each in reversed(parents):
        spec = {each: spec}
    assert f"{field}: unknown field; {remedy}" in sentences({"workers": 1, **spec})


def test_a_groups_workers_and_resources_are_its_own() -> None:
    group = {"name": "a", "workers": 1, "gpus": 1, "replicas": 2, "nvidia.com/gpu": 1, "tolerations": []}
    assert sentences({"workerGroups": [group]}) == [
        "spec.workerGroups[0].gpus: unknown field; it belongs in spec.workerGroups[0].resources.gpus",
        "spec.workerGroups[0].replicas: unknown field; set spec.workerGroups[0].workers",
        "spec.workerGroups[0].nvidia.com/gpu: unknown field; set spec.workerGroups[0].resources.gpus",
        "spec.workerGroups[0].tolerations: unknown field; it belongs in spec.podTemplate.spec.tolerations",
    ]

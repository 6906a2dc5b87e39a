"""A job's manifest is checked as a whole: its kind, its name (a part of its children's names), and its spec."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.api.sentences import sentences
from trainmaster_operator.api.parsing import InvalidJob, parse_job

NAMES = {
    "too long": (
        "x" * 53,
        f"metadata.name: '{'x' * 53}' has 53 characters, and the labels of its pods leave room for 52; use at most 52",
    ),
    "with an underscore": (
        "my_job",
        "metadata.name: 'my_job' is not a name that a Service can have; use lower case letters, digits and '-', "
        "beginning with a letter and ending with a letter or digit",
    ),
    "with a digit first, which Services refuse before Kubernetes 1.36": (
        "1abc",
        "metadata.name: '1abc' is not a name that a Service can have; use lower case letters, digits and '-', "
        "beginning with a letter and ending with a letter or digit",
    ),
    "with a line's end": (
        "job\n",
        "metadata.name: 'job\\n' is not a name that a Service can have; use lower case letters, digits and '-', "
        "beginning with a letter and ending with a letter or digit",
    ),
}


@pytest.mark.parametrize(("name", "sentence"), NAMES.values(), ids=NAMES.keys())
def test_a_name_that_no_child_can_have_is_refused(name: str, sentence: str) -> None:
    assert sentences({"workers": 1}, name) == [sentence]


def test_a_name_may_use_all_the_room_that_labels_leave() -> None:
    # `<set>-<hash of at most 10>` is the value of controller-revision-hash, and a label has at most 63 characters.
    assert sentences({"workers": 1}, "x" * 52) == []
    assert len("x" * 52 + "-" + "7" * 10) == 63


def test_a_group_leaves_less_room_for_the_name() -> None:
    groups = {"workerGroups": [{"name": "a100", "workers": 1}, {"name": "v", "workers": 1}]}
    assert sentences(groups, "x" * 47) == []
    assert sentences(groups, "x" * 48) == [
        f"metadata.name: '{'x' * 48}', joined with a group's name by '-', has more than 52 characters, for which the "
        "labels of the pods leave no room; shorten one of the two"
    ]


def job(**changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "job"},
        "spec": {"workers": 1},
        **changes,
    }


def manifest_sentences(raw: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidJob) as caught:
        parse_job(raw)
    return [str(problem) for problem in caught.value.problems]


def test_a_job_is_parsed() -> None:
    parsed = parse_job(job(metadata={"name": "bert", "namespace": "team"}))
    assert (parsed.namespace, parsed.name, parsed.spec.workers) == ("team", "bert", 1)


def test_a_generated_name_is_measured_with_what_the_api_server_appends() -> None:
    assert parse_job(job(metadata={"generateName": "run-"})).name == "run-xxxxx"
    (sentence,) = manifest_sentences(job(metadata={"generateName": "x" * 50}))
    assert "has 55 characters" in sentence


def test_a_manifest_of_another_kind_is_refused() -> None:
    assert manifest_sentences(job(apiVersion="trainmaster.dev/v1", kind="TrainingJob")) == [
        "apiVersion: 'trainmaster.dev/v1' is not trainmaster.dev/v1alpha1; use that",
        "kind: 'TrainingJob' is not DistributedTrainingJob; use that",
    ]


def test_a_manifest_without_metadata_or_name_is_refused() -> None:
    assert manifest_sentences(job(metadata=None)) == [
        "metadata: is empty or missing; give metadata with a name, indented",
    ]


def test_a_field_beside_the_spec_is_refused() -> None:
    assert manifest_sentences(job(specs={})) == ["specs: unknown field; did you mean spec?"]

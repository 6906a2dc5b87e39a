"""Metadata is refused exactly where a real API server (1.36) refused it."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster_operator.api.parsing import check_metadata

FORM = "use at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"
DOMAIN = "use a domain before the '/', such as example.com/name"
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "u"}
WRONG: dict[str, tuple[Any, str]] = {
    "a misspelled field": ({"lables": {}}, "metadata.lables: unknown field; did you mean labels?"),
    "a field of the spec": ({"workers": 2}, "metadata.workers: unknown field; it belongs in spec.workers"),
    "a field of the top": (
        {"spec": {}},
        "metadata.spec: unknown field; it belongs at the top of the file, not indented",
    ),
    "a name of Python": (
        {"owner_references": []},
        "metadata.owner_references: unknown field; did you mean ownerReferences?",
    ),
    "a number for a name": ({"name": 3}, "metadata.name: 3 is not text; write it in quotes"),
    "a list for a name": ({"name": ["a"]}, "metadata.name: a list is not text; give one text"),
    "a label that is a number": ({"labels": {"a": 1}}, "metadata.labels.a: 1 is not text; write it in quotes"),
    "a label that is true": ({"labels": {"a": True}}, "metadata.labels.a: true is not text; write it in quotes"),
    "a list of labels": ({"labels": ["a"]}, "metadata.labels: a list is not a mapping; give its fields"),
    "an annotation in an annotation": (
        {"annotations": {"a": {"b": "c"}}},
        "metadata.annotations.a: a mapping is not text; give one text",
    ),
    "a label's value with spaces": (
        {"labels": {"a": "my team"}},
        f"metadata.labels.a: 'my team' can't be a label's value; {FORM}",
    ),
    "a label's key with a space": ({"labels": {"a b": ""}}, f"metadata.labels[a b]: 'a b' can't be a key; {FORM}"),
    "a label's domain in capitals": (
        {"labels": {"Example.com/a": ""}},
        f"metadata.labels[Example.com/a]: 'Example.com/a' can't be a key; {DOMAIN}",
    ),
    "two slashes in a label's key": (
        {"labels": {"a/b/c": ""}},
        f"metadata.labels[a/b/c]: 'a/b/c' can't be a key; {DOMAIN}",
    ),
    "an annotation's key with a space": (
        {"annotations": {"a b": ""}},
        f"metadata.annotations[a b]: 'a b' can't be a key; {FORM}",
    ),
    "too many annotations": (
        {"annotations": {"a": "x" * 262_144}},
        "metadata.annotations: has 262145 bytes; use at most 262144 for all annotations together",
    ),
    "a namespace with capitals": (
        {"namespace": "Team_A"},
        "metadata.namespace: 'Team_A' can't be used; use lower case letters, digits and '-', beginning and ending with "
        "a letter or digit",
    ),
    "a finalizer that is none": (
        {"finalizers": ["a b"]},
        f"metadata.finalizers[0]: 'a b' can't be a key; {FORM}",
    ),
    "an owner without a uid": (
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "a"}]},
        "metadata.ownerReferences[0].uid: is missing; set it",
    ),
    "a namespace that is too long": (
        {"namespace": "x" * 64},
        f"metadata.namespace: '{'x' * 64}' is too long; use at most 63 characters",
    ),
    "a time that is none": (
        {"creationTimestamp": "yesterday"},
        "metadata.creationTimestamp: 'yesterday' is not a time; remove it, the API server sets it",
    ),
    "a text for a generation": (
        {"generation": "3"},
        "metadata.generation: '3' is not a whole number; write it without quotes",
    ),
}


@pytest.mark.parametrize(("metadata", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_wrong_metadata_is_refused_with_a_sentence(metadata: dict[str, Any], sentence: str) -> None:
    assert [str(problem) for problem in check_metadata({"name": "a", **metadata})] == [sentence]


RIGHT: dict[str, dict[str, Any]] = {
    "labels without values": {"labels": {"a": "", "b": None}},
    "no labels": {"labels": None, "annotations": None},
    "an annotation's domain in capitals": {"annotations": {"Example.com/A": "any text, 😀"}},
    "a finalizer without a domain": {"finalizers": ["mine", "example.com/mine"]},
    "an owner": {"ownerReferences": [{**OWNER, "blockOwnerDeletion": True}]},
    "a name and the beginning of one": {"generateName": "a-"},
    "what kubectl get prints": {
        "uid": "4",
        "resourceVersion": "3",
        "generation": 2,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "selfLink": "",
        "managedFields": [
            {"manager": "kubectl", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}
        ],
    },
    "nulls": {"namespace": None, "creationTimestamp": None},
}


@pytest.mark.parametrize("metadata", RIGHT.values(), ids=RIGHT.keys())
def test_metadata_that_the_api_server_takes_is_right(metadata: dict[str, Any]) -> None:
    assert check_metadata({"name": "a", **metadata}) == []

"""podTemplate merges as a strategic merge patch does.

The cases are those of Kubernetes' documentation and tests:
https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/ and
k8s.io/apimachinery pkg/util/strategicpatch (StrategicMergePatch), with the patchMergeKey tags of k8s.io/api/core/v1.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster_operator.api.merge import MERGE_KEYS, MergeError, _identity, merge

MOUNT_B_AT_X, MOUNT_A_AT_Y = {"name": "b", "mountPath": "/x"}, {"name": "a", "mountPath": "/y"}
CASES: dict[str, tuple[Any, Any, Any]] = {
    "ports of one number differ in their protocol, TCP where none is given": (
        {"ports": [{"containerPort": 53, "name": "dns"}]},
        {"ports": [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "protocol": "TCP", "hostPort": 53}]},
        {
            "ports": [
                {"containerPort": 53, "name": "dns", "protocol": "TCP", "hostPort": 53},
                {"containerPort": 53, "protocol": "UDP"},
            ]
        },
    ),
    "maps merge key by key": (
        {"nodeSelector": {"a": "1"}, "hostPID": False},
        {"nodeSelector": {"b": "2"}, "hostPID": True},
        {"nodeSelector": {"a": "1", "b": "2"}, "hostPID": True},
    ),
    "null deletes a key": (
        {"nodeSelector": {"a": "1", "b": "2"}},
        {"nodeSelector": {"a": None}},
        {"nodeSelector": {"b": "2"}},
    ),
    "null of what isn't there is nothing": ({}, {"hostname": None}, {}),
    "$patch: replace replaces a map": (
        {"securityContext": {"runAsNonRoot": True}},
        {"securityContext": {"$patch": "replace", "fsGroup": 1}},
        {"securityContext": {"fsGroup": 1}},
    ),
    "$patch: delete deletes a map": ({"affinity": {"a": 1}}, {"affinity": {"$patch": "delete"}}, {}),
    "containers merge by name, new ones at the end": (
        {"containers": [{"name": "worker", "image": "a", "tty": True}]},
        {"containers": [{"name": "side", "image": "s"}, {"name": "worker", "image": "b"}]},
        {"containers": [{"name": "worker", "image": "b", "tty": True}, {"name": "side", "image": "s"}]},
    ),
    "$patch: delete deletes an item": (
        {"containers": [{"name": "a"}, {"name": "b"}]},
        {"containers": [{"name": "a", "$patch": "delete"}]},
        {"containers": [{"name": "b"}]},
    ),
    "$patch: replace in an item replaces that item": (
        {"containers": [{"name": "a", "image": "x", "tty": True}]},
        {"containers": [{"name": "a", "$patch": "replace", "image": "y"}]},
        {"containers": [{"name": "a", "image": "y"}]},
    ),
    "- $patch: replace replaces a list": (
        {"containers": [{"name": "a"}, {"name": "b"}]},
        {"containers": [{"$patch": "replace"}, {"name": "c"}]},
        {"containers": [{"name": "c"}]},
    ),
    "variables merge by name": (
        {"containers": [{"name": "w", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}]},
        {"containers": [{"name": "w", "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]}]},
        {
            "containers": [
                {
                    "name": "w",
                    "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}, {"name": "C", "value": "4"}],
                }
            ]
        },
    ),
    "a variable's value gives way to valueFrom by null": (
        {"containers": [{"name": "w", "env": [{"name": "A", "value": "1"}]}]},
        {"containers": [{"name": "w", "env": [{"name": "A", "value": None, "valueFrom": {"x": 1}}]}]},
        {"containers": [{"name": "w", "env": [{"name": "A", "valueFrom": {"x": 1}}]}]},
    ),
    "mounts merge by path, not by name": (
        {"containers": [{"name": "w", "volumeMounts": [{"name": "a", "mountPath": "/x"}]}]},
        {
            "containers": [
                {"name": "w", "volumeMounts": [{"name": "b", "mountPath": "/x"}, {"name": "a", "mountPath": "/y"}]}
            ]
        },
        {
            "containers": [
                {"name": "w", "volumeMounts": [{"name": "b", "mountPath": "/x"}, {"name": "a", "mountPath": "/y"}]}
            ]
        },
    ),
    "ports merge by containerPort": (
        {"containers": [{"name": "w", "ports": [{"containerPort": 1, "protocol": "TCP"}]}]},
        {"containers": [{"name": "w", "ports": [{"containerPort": 1, "hostPort": 2}]}]},
        {"containers": [{"name": "w", "ports": [{"containerPort": 1, "protocol": "TCP", "hostPort": 2}]}]},
    ),
    "lists without a key are replaced": (
        {"containers": [{"name": "w", "args": ["a", "b"]}], "readinessGates": [{"conditionType": "a"}]},
        {"containers": [{"name": "w", "args": ["c"]}], "readinessGates": [{"conditionType": "b"}]},
        {"containers": [{"name": "w", "args": ["c"]}], "readinessGates": [{"conditionType": "b"}]},
    ),
    "secrets to pull images merge by name": (
        {"imagePullSecrets": [{"name": "a"}]},
        {"imagePullSecrets": [{"name": "b"}]},
        {"imagePullSecrets": [{"name": "a"}, {"name": "b"}]},
    ),
    "tolerations are added, by key and effect (Kubernetes would replace them)": (
        {"tolerations": [{"key": "a", "effect": "NoExecute", "tolerationSeconds": 40}]},
        {"tolerations": [{"key": "b"}, {"key": "a", "effect": "NoExecute", "tolerationSeconds": 5}]},
        {"tolerations": [{"key": "a", "effect": "NoExecute", "tolerationSeconds": 5}, {"key": "b"}]},
    ),
    "a map takes the place of what wasn't one": ({"a": "text"}, {"a": {"b": 1}}, {"a": {"b": 1}}),
}


@pytest.mark.parametrize(("original", "patch", "merged"), CASES.values(), ids=CASES.keys())
def test_merging(original: Any, patch: Any, merged: Any) -> None:
    assert merge(original, patch) == merged


@pytest.mark.parametrize("patch", [patch for _, patch, _ in CASES.values()])
def test_merging_twice_is_merging_once(patch: Any) -> None:
    once = merge({}, patch)
    assert merge(once, patch) == once


def test_neither_side_is_changed() -> None:
    original = {"containers": [{"name": "w", "env": [{"name": "A", "value": "1"}]}]}
    patch = {"containers": [{"name": "w", "env": [{"name": "A", "value": "2"}]}]}
    merge(original, patch)
    assert original["containers"][0]["env"] == [{"name": "A", "value": "1"}]
    assert patch["containers"][0]["env"] == [{"name": "A", "value": "2"}]


@pytest.mark.parametrize(
    ("patch", "place"),
    [
        ({"containers": ["worker"]}, "podTemplate.containers[0]"),
        ({"containers": [{"image": "x"}]}, "podTemplate.containers[0].name"),
        ({"$retainKeys": ["a"]}, "podTemplate.$retainKeys"),
        ({"a": {"$patch": "keep"}}, "podTemplate.a.$patch"),
    ],
)
def test_what_cant_be_merged_is_named(patch: Any, place: str) -> None:
    with pytest.raises(MergeError) as caught:
        merge({}, patch)
    assert caught.value.path == place


def test_the_keys_are_those_of_kubernetes_own_schemas() -> None:
    """The table contains every list below a PodSpec that Kubernetes merges by a key, with the same key."""
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / "v1.37.0-local"
    definitions = json.loads((folder / "_definitions.json").read_text())["$defs"]
    found: dict[str, str] = {}
    waiting, seen = ["io.k8s.api.core.v1.PodSpec"], set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        for field, schema in definitions[name].get("properties", {}).items():
            if "x-kubernetes-patch-merge-key" in schema:
                found[field] = schema["x-kubernetes-patch-merge-key"]
            references = [
                part["$ref"].rsplit("/", 1)[-1] for part in (schema, schema.get("items", {})) if "$ref" in part
            ]
            waiting += [reference for reference in references if reference not in seen]
    # Ephemeral containers can't be in a template, the owners are those of an ephemeral volume's claim, and tolerations
    # have no key in Kubernetes.
    del found["ephemeralContainers"], found["ownerReferences"]
    assert found == {field: keys[0] for field, keys in MERGE_KEYS.items() if field != "tolerations"}


def by_searching(original: Sequence[Any], patch: Sequence[Any], keys: tuple[str, ...]) -> list[Any]:
    """Merges a list by its keys as defined: each item is searched from the beginning."""
    items = list(original)
    if any(item == {"$patch": "replace"} for item in patch):
        items = []
    for item in patch:
        if item == {"$patch": "replace"}:
            continue
        identity = tuple(item.get(key) for key in keys)
        found = next((place for place, other in enumerate(items) if tuple(map(other.get, keys)) == identity), None)
        if item.get("$patch") == "delete":
            if found is not None:
                del items[found]
        elif found is None:
            items.append(merge({}, item))
        else:
            items[found] = merge(items[found], item)
    return items


# The values are few and alike, so that they collide: equal numbers (1, 1.0 and true), and keys that can't be hashed.
KEYS = st.sampled_from([None, "a", "b", 1, 1.0, True, 0, False, "", [], [1], [1.0], {}, {"x": 1}])
ITEMS = st.fixed_dictionaries({}, optional={"key": KEYS, "effect": KEYS, "value": st.integers(0, 2)})
DIRECTIVES = st.sampled_from([{}, {}, {}, {"$patch": "delete"}, {"$patch": "replace"}])
CHANGES = st.tuples(ITEMS, DIRECTIVES).map(lambda parts: {**parts[0], **parts[1]})


# A rendered list has no two items with the same key.
@given(
    st.lists(ITEMS, max_size=5, unique_by=lambda item: _identity(item, ("key", "effect"))),
    st.lists(CHANGES, max_size=8),
)
def test_merging_by_an_index_is_merging_by_searching(original: list[Any], patch: list[Any]) -> None:
    merged = merge({"tolerations": original}, {"tolerations": patch})["tolerations"]
    # The values are compared as text, because in Python 1 equals True.
    assert json.dumps(merged) == json.dumps(by_searching(original, patch, ("key", "effect")))


def test_merging_twenty_thousand_items_reads_each_a_few_times() -> None:
    """They fit into 0.35 MB, but merging took 51 s when each item was compared with all items before it."""
    count, reads = 20_000, 0

    class Toleration(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            nonlocal reads
            reads += 1
            return super().get(key, default)

    original = [Toleration(key=f"old-{n}") for n in range(100)]
    patch = [Toleration(key=f"new-{n}") for n in range(count)]
    assert len(merge({"tolerations": original}, {"tolerations": patch})["tolerations"]) == count + 100
    assert reads < 20 * count


def test_a_list_replaces_what_wasnt_one() -> None:
    assert merge({"env": "production"}, {"env": [{"name": "A"}]}) == {"env": [{"name": "A"}]}

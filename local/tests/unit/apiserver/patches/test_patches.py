"""JSON merge patch, JSON patch, and strategic merge patch work (sig-api-machinery's `strategic-merge-patch.md`)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster_local.apiserver.apimachinery.errors import ApiError
from trainmaster_local.apiserver.patches.json_patches import json_patch, merge_patch
from trainmaster_local.apiserver.patches.strategic import strategic_merge_patch

_KEYED = {"x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "containers": {
            "type": "array",
            "items": {"type": "object", "properties": {"env": {"type": "array", **_KEYED}}},
            **_KEYED,
        },
        "finalizers": {"type": "array", "x-kubernetes-patch-strategy": "merge"},
        "args": {"type": "array"},
        "strategy": {"type": "object", "x-kubernetes-patch-strategy": "retainKeys"},
    },
}
scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
values = st.recursive(scalars, lambda inner: st.dictionaries(st.text(max_size=2), inner, max_size=3), max_leaves=8)


def test_merge_patch_follows_the_examples_of_rfc_7386() -> None:
    examples = [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        (["a", "b"], {"a": "b"}, {"a": "b"}),
    ]
    for target, patch, result in examples:
        assert merge_patch(target, patch) == result


@given(values, values)
def test_a_merge_patch_applied_twice_does_no_more(target: Any, patch: Any) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


def test_a_json_patch_that_fails_changes_nothing() -> None:
    target = {"a": {"b": 1}}
    operations = [{"op": "replace", "path": "/a/b", "value": 2}, {"op": "test", "path": "/a/b", "value": 3}]
    with pytest.raises(ApiError) as refused:
        json_patch(target, operations)
    assert refused.value.code == 422
    assert target == {"a": {"b": 1}}


def test_strategic_lists_merge_by_key() -> None:
    target = {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}
    patch = {"containers": [{"name": "b", "image": "2"}, {"name": "c"}]}
    assert strategic_merge_patch(target, patch, SCHEMA)["containers"] == [
        {"name": "a", "image": "1"},
        {"name": "b", "image": "2"},
        {"name": "c"},
    ]


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        (
            {"containers": [{"name": "a"}, {"name": "b"}]},
            {"containers": [{"name": "a", "$patch": "delete"}]},
            {"containers": [{"name": "b"}]},
        ),
        (
            {"containers": [{"name": "a"}]},
            {"containers": [{"name": "z"}, {"$patch": "replace"}]},
            {"containers": [{"name": "z"}]},
        ),
        (
            {"containers": [{"name": "a"}, {"name": "b"}, {"name": "server"}]},
            {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "a", "x": 1}]},
            {"containers": [{"name": "b"}, {"name": "server"}, {"name": "a", "x": 1}]},
        ),
        ({"finalizers": ["a", "b"]}, {"$deleteFromPrimitiveList/finalizers": ["a"]}, {"finalizers": ["b"]}),
        ({"finalizers": ["a"]}, {"finalizers": ["a", "b"]}, {"finalizers": ["a", "b"]}),
        ({"args": ["a", "b"]}, {"args": ["c"]}, {"args": ["c"]}),
        (
            {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}},
            {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}},
            {"strategy": {"type": "Recreate"}},
        ),
        ({"args": ["a"], "finalizers": ["b"]}, {"args": None}, {"finalizers": ["b"]}),
    ],
)
def test_strategic_directives(target: Any, patch: Any, result: Any) -> None:
    merged = strategic_merge_patch(target, patch, SCHEMA)
    if "$setElementOrder/containers" in patch:
        assert [item["name"] for item in merged["containers"]].index("b") == 0
        assert {item["name"] for item in merged["containers"]} == {"a", "b", "server"}
    else:
        assert merged == result


def test_an_item_without_its_key_is_refused() -> None:
    with pytest.raises(ApiError, match="does not contain declared merge key: name"):
        strategic_merge_patch({"containers": []}, {"containers": [{"image": "x"}]}, SCHEMA)

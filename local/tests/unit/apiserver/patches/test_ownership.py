"""Server-side apply maintains managedFields (https://kubernetes.io/docs/reference/using-api/server-side-apply/)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local.tests.unit.apiserver.widgets import WIDGET_SCHEMA, WIDGETS, managers, new_api, widget
from trainmaster_local.apiserver.api import Api, ApiError, Options
from trainmaster_local.apiserver.patches import managed
from trainmaster_local.apiserver.patches.fieldsets import difference, fields_of, intersection, paths, union
from trainmaster_local.apiserver.patches.managed import Manager
from trainmaster_local.apiserver.schema.structure import with_object_meta

SCHEMA = with_object_meta(WIDGET_SCHEMA)
names = st.sampled_from(["a", "b", "c", "d"])
specs = st.fixed_dictionaries(
    {},
    optional={
        "size": st.integers(0, 3),
        "mode": st.sampled_from(["fast", "slow"]),
        "tags": st.lists(names, unique=True, max_size=3),
        "parts": st.lists(
            st.fixed_dictionaries({"name": names}, optional={"count": st.integers(0, 2)}),
            unique_by=lambda part: part["name"],
            max_size=3,
        ),
        "plain": st.lists(st.integers(0, 3), max_size=2),
        "labels": st.dictionaries(names, names, max_size=3),
        "free": st.dictionaries(names, st.integers(0, 2), max_size=2),
    },
)


async def apply(api: Api, manager: str, force: bool = False, **spec: Any) -> dict[str, Any]:
    return await api.apply(WIDGETS, "one", widget(**spec), "default", force=force, options=Options(manager=manager))


async def test_an_updater_takes_over_what_it_changes() -> None:
    api = await new_api()
    await apply(api, "alice", size=1, labels={"a": "b"})
    changed = await api.patch(WIDGETS, "one", {"spec": {"size": 2}}, "default", options=Options(manager="kubectl-edit"))
    assert managers(changed) == {
        "alice": {"f:spec": {"f:labels": {"f:a": {}}}},
        "kubectl-edit": {"f:spec": {"f:size": {}}},
    }
    with pytest.raises(
        ApiError, match=r'Apply failed with 1 conflict: conflict with "kubectl-edit" using example.dev/v1'
    ):
        await apply(api, "alice", size=3, labels={"a": "b"})


async def test_several_conflicts_are_listed_in_kubernetes_words() -> None:
    api = await new_api()
    await apply(api, "alice", size=1, mode="slow")
    with pytest.raises(ApiError) as refused:
        await apply(api, "bob", size=2, mode="fast")
    assert refused.value.message == (
        'Apply failed with 2 conflicts: conflicts with "alice":\n- .spec.mode\n- .spec.size'
    )
    assert [cause["field"] for cause in refused.value.status["details"]["causes"]] == [".spec.mode", ".spec.size"]


async def test_equal_values_are_shared_and_survive_one_owner() -> None:
    api = await new_api()
    await apply(api, "alice", size=1, tags=["x"])
    both = await apply(api, "bob", size=1, tags=["y"])
    assert both["spec"]["tags"] == ["x", "y"]
    left = await apply(api, "alice")
    assert left["spec"]["size"] == 1
    assert left["spec"]["tags"] == ["y"]
    gone = await apply(api, "bob")
    assert "size" not in gone["spec"]
    assert "tags" not in gone["spec"]


async def test_an_apply_that_changes_nothing_writes_nothing() -> None:
    api = await new_api()
    first = await apply(api, "alice", size=1, parts=[{"name": "a", "count": 1}])
    before = api.storage.version
    again = await apply(api, "alice", size=1, parts=[{"name": "a", "count": 1}])
    assert again == first
    assert api.storage.version == before


async def test_status_is_owned_through_its_subresource() -> None:
    api = await new_api()
    await apply(api, "alice", size=1)
    await api.patch(
        WIDGETS, "one", {"status": {"phase": "Up"}}, "default", subresource="status", options=Options(manager="op")
    )
    again = await apply(api, "alice", size=2)
    assert again["status"] == {"phase": "Up"}
    assert managers(again)["op"] == {"f:status": {".": {}, "f:phase": {}}}


async def test_a_manager_must_be_named_and_managed_fields_left_out() -> None:
    api = await new_api()
    with pytest.raises(ApiError, match="fieldManager: Required value"):
        await apply(api, "")
    config = widget(size=1)
    config["metadata"]["managedFields"] = [{"manager": "x"}]
    with pytest.raises(ApiError, match=r"metadata\.managedFields must be nil"):
        await api.apply(WIDGETS, "one", config, "default", options=Options(manager="x"))


async def test_managed_fields_can_be_reset() -> None:
    api = await new_api()
    created = await apply(api, "alice", size=1)
    body = {**created, "metadata": {**created["metadata"], "managedFields": [{}]}}
    reset = await api.update(WIDGETS, body, "default", options=Options(manager="op"))
    assert managers(reset) == {}


@settings(max_examples=settings.default.max_examples * 3 // 5)
@given(st.lists(st.tuples(st.sampled_from(["alice", "bob", "carol"]), specs), min_size=1, max_size=6))
def test_applies_keep_what_each_manager_said_last(history: list[tuple[str, dict[str, Any]]]) -> None:
    """Forced applies come in any order: the last one's fields are there, repeating one changes nothing, and nobody owns
    a missing field.
    """

    async def run() -> None:
        api = await new_api()
        for manager, spec in history:
            applied = await apply(api, manager, force=True, **spec)
            stored = fields_of({"spec": applied["spec"]}, SCHEMA)
            wanted = fields_of({"spec": spec}, SCHEMA)
            for name, value in spec.items():
                if name in ("size", "mode", "plain"):
                    assert applied["spec"][name] == value
            for part in spec.get("parts", ()):
                assert any(part.items() <= other.items() for other in applied["spec"]["parts"])
            assert set(spec.get("tags", ())) <= set(applied["spec"].get("tags", ()))
            assert spec.get("labels", {}).items() <= applied["spec"].get("labels", {}).items()
            assert set(paths(wanted)) <= set(paths(managers(applied).get(manager, {})))
            for owned in managers(applied).values():
                missing = set(paths(owned)) - set(paths(stored))
                assert all(_is_empty_at(applied, path) for path in missing), missing
            version = api.storage.version
            assert await apply(api, manager, force=True, **spec) == applied
            assert api.storage.version == version

    asyncio.run(run())


def _is_empty_at(obj: dict[str, Any], path: str) -> bool:
    """Returns whether the path names an existing container: owning it whole isn't a leaf of the object."""
    value: Any = obj
    for name in path.strip(".").split("."):
        name, _, key = name.partition("[")
        if not isinstance(value, dict) or name not in value:
            return False
        value = value[name]
        if key:
            return isinstance(value, list)
    return isinstance(value, (dict, list))


sets = specs.map(lambda spec: fields_of({"spec": spec}, SCHEMA))


@given(sets, sets)
def test_sets_of_fields_obey_the_laws_of_sets(left: dict[str, Any], right: dict[str, Any]) -> None:
    one, other = set(paths(left)), set(paths(right))
    assert set(paths(union(left, right))) == one | other
    assert set(paths(intersection(left, right))) == one & other
    assert set(paths(difference(left, right))) == one - other
    assert union(difference(left, right), intersection(left, right)) == left or one == set()


def test_only_the_newest_updaters_are_kept_apart() -> None:
    """If there are more than ten, the oldest become `ancient-changes` (`capManagersManager`)."""
    live: dict[str, Any] = {"metadata": {}, "spec": {}}
    entries: managed.Entries = {}
    for index in range(14):
        new = {"metadata": {}, "spec": {**live["spec"], f"field{index}": index}}
        manager = Manager(f"m{index:02}", "Update", "example.dev/v1")
        entries = managed.updated(live, new, entries, manager, {}, f"2026-01-01T00:00:{index:02}Z")
        live = new
    assert len(entries) == managed.MAX_UPDATERS
    assert any(entry.manager.name == "ancient-changes" for entry in entries.values())
    owned = [path for entry in entries.values() for path in paths(entry.fields)]
    assert sorted(owned) == sorted(f".spec.field{index}" for index in range(14))

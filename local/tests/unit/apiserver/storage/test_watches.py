"""Watches, paged lists and kept history follow https://kubernetes.io/docs/reference/using-api/api-concepts/."""

from __future__ import annotations

import pytest

from local.tests.unit.apiserver.widgets import WIDGETS, new_api, widget
from trainmaster_local.apiserver.api import Api, ApiError, DeleteOptions, Options, Watch
from trainmaster_local.apiserver.storage.store import Storage


def seen(watch: Watch) -> list[tuple[str, str]]:
    return [(event.type, event.object["metadata"].get("name", "")) for event in watch.pending()]


async def labelled(api: Api, name: str, app: str) -> None:
    body = widget(name, size=1)
    body["metadata"]["labels"] = {"app": app}
    await api.create(WIDGETS, body, "default")


async def test_a_watch_goes_on_from_a_version_and_misses_nothing() -> None:
    api = await new_api()
    await labelled(api, "a", "x")
    version = str(api.storage.version)
    await labelled(api, "b", "x")
    async with await api.watch(WIDGETS, "default", version=version) as watch:
        await api.delete(WIDGETS, "a", "default")
        assert seen(watch) == [("ADDED", "b"), ("DELETED", "a")]


async def test_entering_and_leaving_a_selector_is_adding_and_deleting() -> None:
    api = await new_api()
    await labelled(api, "a", "x")
    async with await api.watch(WIDGETS, "default", labels="app=y", version=str(api.storage.version)) as watch:
        await api.patch(WIDGETS, "a", {"metadata": {"labels": {"app": "y"}}}, "default")
        await api.patch(WIDGETS, "a", {"spec": {"size": 2}}, "default")
        await api.patch(WIDGETS, "a", {"metadata": {"labels": {"app": "z"}}}, "default")
        events = watch.pending()
    assert [event.type for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    assert events[-1].object["metadata"]["labels"] == {"app": "y"}
    assert events[-1].object["metadata"]["resourceVersion"] == str(api.storage.version)


async def test_a_version_that_is_compacted_is_expired() -> None:
    api = await new_api(history=4)
    for index in range(8):
        await labelled(api, f"w{index}", "x")
    oldest = api.storage.version - 4
    with pytest.raises(ApiError) as refused:
        await api.watch(WIDGETS, "default", version=str(oldest - 1))
    assert (refused.value.code, refused.value.reason) == (410, "Expired")
    assert refused.value.message == f"too old resource version: {oldest - 1} ({oldest})"
    async with await api.watch(WIDGETS, "default", version=str(oldest)) as watch:
        assert len(seen(watch)) == 4
    api.storage.compact()
    with pytest.raises(ApiError, match="too old resource version"):
        await api.watch(WIDGETS, "default", version=str(oldest))


def test_old_events_are_kept_only_while_they_are_few() -> None:
    now = 0.0
    storage = Storage(clock=lambda: now)
    for index in range(1500):
        storage.put("things", "", f"t{index}", {"metadata": {"name": f"t{index}"}})
    assert len(list(storage.changes_since("things", 0))) == 1500
    now = 100.0
    storage.put("things", "", "last", {"metadata": {"name": "last"}})
    with pytest.raises(ApiError, match=r"too old resource version: 0 \(501\)"):
        storage.changes_since("things", 0)
    assert len(list(storage.changes_since("things", 501))) == 1000


async def test_initial_events_end_with_a_bookmark() -> None:
    api = await new_api()
    await labelled(api, "a", "x")
    async with await api.watch(WIDGETS, initial=True, bookmarks=True) as watch:
        added, bookmark = watch.pending()
    assert added.type == "ADDED"
    assert bookmark.object["metadata"] == {
        "resourceVersion": str(api.storage.version),
        "annotations": {"k8s.io/initial-events-end": "true"},
    }


async def test_pages_show_one_moment() -> None:
    api = await new_api()
    for name in "abcde":
        await labelled(api, name, "x")
    first = await api.list(WIDGETS, "default", limit=2)
    await api.delete(WIDGETS, "d", "default")
    await labelled(api, "bb", "x")
    await api.patch(WIDGETS, "e", {"spec": {"size": 9}}, "default")
    second = await api.list(WIDGETS, "default", limit=2, token=first.continue_token)
    third = await api.list(WIDGETS, "default", limit=2, token=second.continue_token)
    names = [item["metadata"]["name"] for page in (first, second, third) for item in page.items]
    assert names == ["a", "b", "c", "d", "e"]
    assert third.items[-1]["spec"]["size"] == 1
    assert (first.remaining, third.continue_token, third.version) == (3, "", first.version)
    exact = await api.list(WIDGETS, "default", version=str(first.version), match="Exact")
    assert [item["metadata"]["name"] for item in exact.items] == ["a", "b", "c", "d", "e"]


async def test_a_token_that_is_too_old_is_expired() -> None:
    api = await new_api()
    for name in "abc":
        await labelled(api, name, "x")
    page = await api.list(WIDGETS, limit=1)
    await api.delete(WIDGETS, "c", "default")
    api.storage.compact()
    with pytest.raises(ApiError, match="continue parameter is too old") as refused:
        await api.list(WIDGETS, limit=1, token=page.continue_token)
    assert refused.value.code == 410


async def test_a_watch_that_is_not_read_is_ended() -> None:
    api = await new_api()
    elsewhere = next(iter(api.storage.changes_since("namespaces", 0)))
    async with await api.watch(WIDGETS, "default") as watch:
        for _ in range(20_001):
            watch.replay(elsewhere)
        assert not watch.closed  # it is in another namespace
    await labelled(api, "a", "x")
    change = next(iter(api.storage.changes_since(WIDGETS, api.storage.version - 1)))
    async with await api.watch(WIDGETS, "default") as watch:
        for _ in range(20_001):
            watch.replay(change)
        assert watch.closed


async def test_deletion_waits_for_finalizers_and_keeps_to_preconditions() -> None:
    api = await new_api()
    body = widget("a", size=1)
    body["metadata"]["finalizers"] = ["example.dev/hold"]
    created = await api.create(WIDGETS, body, "default")
    with pytest.raises(ApiError, match="does not match the UID in record"):
        await api.delete(WIDGETS, "a", "default", options=DeleteOptions(uid="other"))
    with pytest.raises(ApiError, match="does not match the ResourceVersion"):
        await api.delete(WIDGETS, "a", "default", options=DeleteOptions(version="1"))
    marked = await api.delete(WIDGETS, "a", "default", options=DeleteOptions(propagation="Foreground"))
    assert marked["metadata"]["finalizers"] == ["example.dev/hold", "foregroundDeletion"]
    assert marked["metadata"]["generation"] == created["metadata"]["generation"] + 1
    await api.patch(WIDGETS, "a", {"metadata": {"finalizers": ["foregroundDeletion"]}}, "default")
    assert api.peek(WIDGETS, "a", "default") is not None
    await api.patch(WIDGETS, "a", {"metadata": {"finalizers": None}}, "default")
    assert api.peek(WIDGETS, "a", "default") is None


async def test_a_dry_run_stores_nothing() -> None:
    api = await new_api()
    before = api.storage.version
    dry = await api.create(WIDGETS, widget("a", size=1), "default", options=Options(dry_run=True))
    assert dry["spec"]["mode"] == "fast"
    assert (api.storage.version, api.peek(WIDGETS, "a", "default")) == (before, None)

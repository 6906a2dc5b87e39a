"""The garbage collector follows types that are deleted and recreated."""

from __future__ import annotations

import asyncio

from local.tests.unit.apiserver.widgets import WIDGETS, definition, new_api, widget
from local.tests.unit.polling import until
from trainmaster_local.apiserver.crd import definitions
from trainmaster_local.controllers.garbage import GarbageCollector


async def test_dependents_go_with_their_owner_also_after_its_definition_was_made_anew() -> None:
    api = await new_api()
    collector = asyncio.create_task(GarbageCollector(api).run())
    await api.delete(definitions.RESOURCE, WIDGETS)
    await until(lambda: api.peek(definitions.RESOURCE, WIDGETS) is None)
    await api.create(definitions.RESOURCE, definition())
    owner = await api.create(WIDGETS, widget("owner"), "default")
    reference = {"apiVersion": "example.dev/v1", "kind": "Widget", "name": "owner", "uid": owner["metadata"]["uid"]}
    await api.create("configmaps", {"metadata": {"name": "child", "ownerReferences": [reference]}}, "default")
    # The collector has looked at the child while its owner lived.
    await asyncio.sleep(0.05)

    await api.delete(WIDGETS, "owner", "default")

    await until(lambda: api.peek("configmaps", "child", "default") is None)
    collector.cancel()


async def test_dependents_go_with_owners_that_went_with_their_definition() -> None:
    api = await new_api()
    collector = asyncio.create_task(GarbageCollector(api).run())
    owner = await api.create(WIDGETS, widget("owner"), "default")
    reference = {"apiVersion": "example.dev/v1", "kind": "Widget", "name": "owner", "uid": owner["metadata"]["uid"]}
    await api.create("configmaps", {"metadata": {"name": "child", "ownerReferences": [reference]}}, "default")
    await asyncio.sleep(0.05)

    await api.delete(definitions.RESOURCE, WIDGETS)

    await until(lambda: api.peek("configmaps", "child", "default") is None)
    collector.cancel()

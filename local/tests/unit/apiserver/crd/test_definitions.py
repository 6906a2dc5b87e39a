"""CustomResourceDefinitions are created, changed and deleted."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from local.tests.unit.apiserver.widgets import WIDGET_SCHEMA, WIDGETS, definition, new_api, widget
from trainmaster_local.apiserver.api import Api, ApiError
from trainmaster_local.apiserver.crd import definitions
from trainmaster_local.apiserver.discovery import documents
from trainmaster_local.apiserver.discovery.openapi import OpenApi
from trainmaster_local.apiserver.printing.tables import table
from trainmaster_local.apiserver.resources import Registry


async def refused(body: dict[str, Any]) -> str:
    registry = Registry()
    api = Api(registry)
    definitions.install(api)
    with pytest.raises(ApiError) as error:
        await api.create(definitions.RESOURCE, body)
    assert error.value.code == 422
    return error.value.message


async def gone(api: Api, resource: str, name: str, namespace: str = "") -> None:
    for _ in range(400):
        if api.peek(resource, name, namespace) is None:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{resource} {name} is still there")


async def test_a_rule_that_does_not_compile_refuses_the_definition() -> None:
    schema = copy.deepcopy(WIDGET_SCHEMA)
    schema["properties"]["spec"]["x-kubernetes-validations"] = [{"rule": "self.sizze > 1"}]
    message = await refused(definition(schema))
    assert (
        "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule: Invalid value: "
        "\"self.sizze > 1\": compilation failed: ERROR: <input>:1:5: undefined field 'sizze'" in message
    )


async def test_what_the_local_cluster_cannot_do_is_refused_clearly() -> None:
    body = definition()
    body["spec"]["conversion"] = {"strategy": "Webhook"}
    message = await refused(body)
    assert 'spec.conversion.strategy: Unsupported value: "Webhook": supported values: "None"' in message
    body = definition(selectableFields=[{"jsonPath": ".spec.mode"}])
    assert "spec.versions[0].selectableFields: Forbidden: the local cluster doesn't have it" in await refused(body)


async def test_a_definition_has_one_version_and_it_is_stored() -> None:
    body = definition()
    body["spec"]["versions"][0]["storage"] = False
    assert "must have exactly one version marked as storage version" in await refused(body)
    body["spec"]["versions"].append({**body["spec"]["versions"][0], "name": "v2"})
    assert "spec.versions[1]: Forbidden: the local cluster doesn't have it" in await refused(body)


async def test_deleting_a_definition_deletes_its_objects_and_waits_for_finalizers() -> None:
    api = await new_api()
    held = widget("held", size=1)
    held["metadata"]["finalizers"] = ["example.dev/hold"]
    await api.create(WIDGETS, held, "default")
    await api.create(WIDGETS, widget("free", size=1), "default")
    marked = await api.delete(definitions.RESOURCE, WIDGETS)
    assert marked["metadata"]["finalizers"] == [definitions.FINALIZER]
    await gone(api, WIDGETS, "free", "default")
    assert api.peek(definitions.RESOURCE, WIDGETS) is not None
    await api.patch(WIDGETS, "held", {"metadata": {"finalizers": None}}, "default")
    await gone(api, definitions.RESOURCE, WIDGETS)
    with pytest.raises(ApiError, match="could not find the requested resource"):
        await api.list(WIDGETS)


async def test_watches_end_with_their_type() -> None:
    api = await new_api()
    await api.create(WIDGETS, widget("a", size=1), "default")
    async with await api.watch(WIDGETS, "default", version=str(api.storage.version)) as watch:
        await api.delete(definitions.RESOURCE, WIDGETS)
        seen = [event.type async for event in watch]
    assert seen[-1] == "DELETED"


async def test_columns_come_from_the_definition() -> None:
    columns = [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "Ready", "type": "string", "jsonPath": '.spec.parts[?(@.name=="ready")].count'},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "priority": 1},
    ]
    api = await new_api(additionalPrinterColumns=columns)
    await api.create(WIDGETS, widget("a", size=3, mode="slow", parts=[{"name": "ready", "count": 2}]), "default")
    type_ = api.registry.by_name(WIDGETS)
    page = await api.list(WIDGETS)
    shown = table(type_, page.items, {}, api.clock())
    assert [column["name"] for column in shown["columnDefinitions"]] == ["Name", "Size", "Ready", "Age"]
    assert [row["cells"] for row in shown["rows"]] == [["a", 3, "2", "0s"]]


async def test_discovery_and_openapi_follow_the_definitions() -> None:
    api = await new_api()
    openapi = OpenApi(api.registry)
    document = openapi.document("example.dev", "v1")
    assert document is not None
    schema = document["components"]["schemas"]["dev.example.v1.Widget"]
    assert schema["x-kubernetes-group-version-kind"] == [{"group": "example.dev", "kind": "Widget", "version": "v1"}]
    patch = document["paths"]["/apis/example.dev/v1/namespaces/{namespace}/widgets/{name}"]["patch"]
    assert {"fieldValidation", "dryRun", "force"} <= {parameter["name"] for parameter in patch["parameters"]}
    groups = [group["name"] for group in documents.api_group_list(api.registry)["groups"]]
    assert groups == ["apiextensions.k8s.io", "example.dev"]
    await api.delete(definitions.RESOURCE, WIDGETS)
    await gone(api, definitions.RESOURCE, WIDGETS)
    assert openapi.document("example.dev", "v1") is None
    assert "apis/example.dev/v1" not in openapi.index()["paths"]

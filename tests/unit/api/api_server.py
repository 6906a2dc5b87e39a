"""Answers for a job as an API server with our CRD does: the local cluster's API in process, without HTTP."""

from __future__ import annotations

import asyncio
import copy
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from trainmaster_local.inside import Api, ApiError, Options, new_api
from trainmaster_operator.api.crd import crd
from trainmaster_operator.api.v1alpha1 import API_VERSION, GROUP, KIND, PLURAL

RESOURCE = f"{PLURAL}.{GROUP}"
NAMESPACE = "team"
# Messages that come from CEL. The others, from the schema, name the field again ("spec.workers in body should be ...").
_VALUE = r"(?:\"(?:[^\"\\]|\\.)*\"|-?[0-9][-+.e0-9]*): "
_REASONS = re.compile(rf"^(?:Invalid value: (?:{_VALUE})?|(?:Required value|Forbidden|Duplicate value): )")
_SCHEMA_MESSAGES = re.compile(
    r" in body | must (?:not )?validate |^Unsupported value|^Too |^Duplicate value|^Required value$| RFC 1123 "
)


@dataclass(frozen=True)
class Answer:
    """Holds the object as it is stored, or the reasons for which it is refused."""

    stored: dict[str, Any]
    # Strict validation refuses the request for unknown fields before it checks anything else.
    unknown_fields: str = ""
    # The messages by field.
    causes: tuple[tuple[str, str], ...] = ()

    @property
    def accepted(self) -> bool:
        return not self.unknown_fields and not self.causes

    @property
    def by_rules(self) -> bool:
        """Returns whether the object breaks only rules between fields."""
        return bool(self.causes) and not any(_SCHEMA_MESSAGES.search(message) for _, message in self.causes)

    @property
    def sentences(self) -> list[str]:
        """Returns `field: sentence` for each cause, without the API server's own prefix."""
        return [f"{field}: {_REASONS.sub('', message)}" for field, message in self.causes]


@cache
def schema() -> dict[str, Any]:
    """Returns the CRD's schema, which tests must not change."""
    found: dict[str, Any] = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


@cache
def _server() -> tuple[asyncio.Runner, Api]:
    async def start() -> Api:
        api = new_api()
        await api.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        await api.create("customresourcedefinitions.apiextensions.k8s.io", crd())
        return api

    runner = asyncio.Runner()
    return runner, runner.run(start())


def apply(spec: Any, name: str = "job") -> Answer:
    """Creates the job with strict field validation, as a dry run."""
    runner, api = _server()
    return runner.run(_answer(api.create(RESOURCE, _job(spec, name), NAMESPACE, options=_strict())))


def change(before: Any, after: Any) -> Answer:
    """Updates a job that exists, as a dry run."""
    runner, api = _server()

    async def both() -> Answer:
        old = await api.create(RESOURCE, _job(before, "job"), NAMESPACE)
        new = {**_job(after, "job"), "metadata": copy.deepcopy(old["metadata"])}
        try:
            return await _answer(api.update(RESOURCE, new, NAMESPACE, options=_strict()))
        finally:
            await api.delete(RESOURCE, "job", NAMESPACE)

    return runner.run(both())


def _strict() -> Options:
    return Options(dry_run=True, validation="Strict")


def _job(spec: Any, name: str) -> dict[str, Any]:
    job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": copy.deepcopy(spec)}
    _prune_nulls(job, schema())
    return job


async def _answer(request: Any) -> Answer:
    try:
        return Answer(dict(await request))
    except ApiError as error:
        status = error.status
        causes = (status.get("details") or {}).get("causes") or []
        if status["reason"] != "Invalid":
            return Answer({}, unknown_fields=status["message"])
        return Answer({}, causes=tuple((cause["field"], cause["message"]) for cause in causes))


def _prune_nulls(value: Any, described: dict[str, Any]) -> None:
    """Removes nulls that the schema doesn't allow, because they count as absent (apiextensions-apiserver
    pkg/apiserver/schema/defaulting/prunenulls.go, which the local cluster leaves out)."""
    if isinstance(value, dict):
        for name, child in list(value.items()):
            inner = described.get("properties", {}).get(name) or described.get("additionalProperties")
            if child is None and isinstance(inner, dict) and not inner.get("nullable"):
                del value[name]
            elif isinstance(inner, dict):
                _prune_nulls(child, inner)
    elif isinstance(value, list):
        for item in value:
            _prune_nulls(item, described.get("items", {}))

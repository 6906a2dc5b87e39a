"""Tests may use these parts, with or without a running cluster.

They are the API without HTTP and its changes as they happen, the authorizer, faults, and the containers of faked pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster_local.apiserver.api import Api, ApiError, DeleteOptions, Options
from trainmaster_local.apiserver.cel.costs import RULE_LIMIT, estimate
from trainmaster_local.apiserver.cel.rules import Rules
from trainmaster_local.apiserver.crd import definitions
from trainmaster_local.apiserver.http.auth import Attributes, Decision
from trainmaster_local.apiserver.http.faults import Fault
from trainmaster_local.apiserver.printing.tables import custom_columns
from trainmaster_local.apiserver.resources import Registry
from trainmaster_local.apiserver.storage.store import Change
from trainmaster_local.auth import Authorizer
from trainmaster_local.kinds import BUILTIN_TYPES
from trainmaster_local.kubelet.containers.fake import FakeRuntime
from trainmaster_local.kubelet.containers.runtime import Container, ContainerConfig, Exit

__all__ = [
    "RULE_LIMIT",
    "Api",
    "ApiError",
    "Attributes",
    "Authorizer",
    "Change",
    "Container",
    "ContainerConfig",
    "Decision",
    "DeleteOptions",
    "Exit",
    "FakeRuntime",
    "Fault",
    "Options",
    "custom_columns",
    "new_api",
    "rule_costs",
]


def new_api() -> Api:
    """Returns a new API in the running event loop, with all built-in types and custom resources, and no objects."""
    registry = Registry()
    for type_ in BUILTIN_TYPES:
        registry.add(type_)
    api = Api(registry)
    definitions.install(api)
    return api


def rule_costs(schema: Mapping[str, Any]) -> list[int]:
    """Returns Kubernetes' estimated cost of each CEL expression in a schema; `RULE_LIMIT` is the maximum."""
    return [
        estimate(expression.serialize(), place.declared) * place.often
        for place in Rules.compile(schema).places("", 1)
        for pair in place.compiled
        for expression in pair
        if expression is not None
    ]

"""An API with the built-in types and a namespace runs in memory."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster_local.apiserver.api import Api, ApiError
from trainmaster_local.apiserver.resources import Registry
from trainmaster_local.auth import Tokens
from trainmaster_local.kinds import BUILTIN_TYPES
from trainmaster_local.kinds.bootstrap import bootstrap
from trainmaster_local.kinds.rbac.reviews import serve_tokens

NOW = 1_700_000_000.0


async def started(tokens: Tokens | None = None) -> Api:
    registry = Registry()
    for type_ in BUILTIN_TYPES:
        registry.add(type_)
    serve_tokens(registry, tokens or Tokens(clock=lambda: NOW))
    api = Api(registry, clock=lambda: NOW)
    await bootstrap(api)
    return api


async def refusal(api: Api, resource: str, body: dict[str, Any], namespace: str = "default") -> str:
    """Creates an object that has to be refused; returns the message."""
    with pytest.raises(ApiError) as caught:
        await api.create(resource, body, namespace)
    return caught.value.message


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i:1"}], **spec}}

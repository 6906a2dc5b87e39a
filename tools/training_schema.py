"""Writes operator/trainmaster_operator/api/training_schema.json: the loop's settings, for programs without torch.

It is the JSON schema of the loop's models with inlined references, and without titles, descriptions and defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainloop.config import Config
from trainloop.tasks import BUILT_IN, imported

_LEFT_OUT = frozenset({"$defs", "$ref", "title", "description", "default", "additionalProperties"})


def training_schema() -> str:
    """Returns the schemas of the whole configuration, and of each built-in task's options."""
    tasks = {name: _schema(imported("task.name", target).Options) for name, target in BUILT_IN.items()}
    return json.dumps({"config": _schema(Config), "tasks": tasks}, indent=1) + "\n"


def _schema(model: Any) -> dict[str, Any]:
    schema = model.model_json_schema()
    return _plain(schema, schema.get("$defs", {}))


def _plain(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return _plain(definitions[schema["$ref"].rsplit("/", 1)[-1]], definitions)
    plain = {key: value for key, value in schema.items() if key not in _LEFT_OUT}
    for key in ("properties", "items", "anyOf", "prefixItems"):
        if key == "properties" and key in plain:
            plain[key] = {name: _plain(child, definitions) for name, child in plain[key].items()}
        elif isinstance(plain.get(key), list):
            plain[key] = [_plain(child, definitions) for child in plain[key]]
        elif key in plain:
            plain[key] = _plain(plain[key], definitions)
    return plain

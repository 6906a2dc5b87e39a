"""Decoding by a schema, in one pass: unknown fields are dropped and named, wrong JSON types refused as Go does.

A `Decoder` is a schema made ready for that. Of built-ins every field is checked, nulls and empty optional lists and
maps are dropped, as Go's decoder and `omitempty` do; of custom resources that holds for metadata only, the rest is
validated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import ApiError, bad_request
from trainmaster_local.apiserver.schema.structure import ANY, OBJECT_META, Schema, item_schema, keeps_unknown

_SCALARS = {"string": str, "boolean": bool, "integer": int, "number": float}
# What Go makes of a null in a list.
_ZERO: dict[str, Callable[[], Any]] = {"object": dict, "string": str, "integer": int, "boolean": bool}
_META = ("apiVersion", "kind", "metadata")


class _Findings:
    """Holds what a pass found. `compact` is False for a configuration to apply, whose empty lists and maps mean
    something."""

    __slots__ = ("compact", "problem", "unknown")

    def __init__(self, compact: bool) -> None:
        self.compact = compact
        self.unknown: list[str] = []
        self.problem: tuple[str, str, str] | None = None


class Decoder:
    """A place in a schema: `kind` is object, array, anything, or a scalar's type; `typed`: types are checked."""

    __slots__ = ("extra", "fields", "format", "is_map", "items", "keeps", "kind", "python", "required", "typed")

    def __init__(self, schema: Schema, typed: bool, *, root: bool = False) -> None:
        if schema.get("x-kubernetes-embedded-resource") and not root:
            schema = _embedded(schema)
        self.typed = typed
        self.kind = _kind(schema)
        self.format = schema.get("format", "")
        self.python = _SCALARS.get(self.kind)
        self.keeps = keeps_unknown(schema)
        self.required = frozenset(schema.get("required", ()))
        self.fields: dict[str, Decoder] = {
            name: Decoder(child, typed or (root and name in _META))
            for name, child in schema.get("properties", {}).items()
        }
        additional = schema.get("additionalProperties")
        self.extra: Decoder | None = None
        if isinstance(additional, dict):
            self.extra = Decoder(additional, typed)
        elif additional:
            self.extra = Decoder(ANY, typed)
        self.is_map = self.extra is not None and not self.fields
        self.items: Decoder | None = None
        if self.kind == "array":
            items = item_schema(schema)
            self.items = Decoder(items, typed) if items is not ANY else None

    def _object(self, value: dict[str, Any], path: str, found: _Findings) -> None:
        fields = self.fields
        if not fields and self.extra is None and self.keeps:
            return
        for name in list(value):
            child = value[name]
            decoder = fields.get(name)
            named = decoder is not None
            if decoder is None:
                decoder = self.extra
                if decoder is None:
                    if not self.keeps:
                        del value[name]
                        found.unknown.append(f"{path}.{name}" if path else name)
                    continue
            kind = type(child)
            if kind is decoder.python:
                continue
            if kind is dict or kind is list:
                if decoder.kind == "anything":
                    continue
                decoder.run(child, f"{path}.{name}" if path else name, found)
                optional = named and decoder.typed and found.compact and name not in self.required
                if not child and optional and (kind is list or decoder.is_map):
                    del value[name]
            elif child is None:
                if decoder.typed and not self.keeps:
                    del value[name]
            elif decoder.typed:
                decoder.scalar(child, f"{path}.{name}" if path else name, found)

    def run(self, value: Any, path: str, found: _Findings) -> None:
        """Goes through a list or an object."""
        if isinstance(value, dict):
            if self.kind == "object":
                self._object(value, path, found)
            elif self.typed:
                self._wrong(value, path, found)
        elif self.kind == "array":
            items = self.items
            if items is None:
                return
            for index, item in enumerate(value):
                if isinstance(item, (dict, list)):
                    if items.kind != "anything":
                        items.run(item, f"{path}[{index}]", found)
                elif item is None:
                    if items.typed and items.kind in _ZERO:
                        value[index] = _ZERO[items.kind]()
                elif items.typed and type(item) is not items.python:
                    items.scalar(item, path, found)
        elif self.typed:
            self._wrong(value, path, found)

    def scalar(self, value: Any, path: str, found: _Findings) -> None:
        """Checks a scalar that isn't of just the type that is wanted."""
        kind = self.kind
        if kind == "anything" or (kind == "number" and type(value) is int):
            return
        if kind == "int-or-string" and not isinstance(value, bool):
            return
        if kind == "integer" and isinstance(value, float) and value.is_integer():
            return
        self._wrong(value, path, found)

    def _wrong(self, value: Any, path: str, found: _Findings) -> None:
        if found.problem is not None:
            return
        wanted = {
            "object": "map" if self.is_map else "struct",
            "array": "slice",
            "string": "string",
            "boolean": "bool",
            "integer": self.format or "int64",
            "number": "float64",
            "int-or-string": "intstr.IntOrString",
        }[self.kind]
        go_type = _go_type(value)
        if self.kind == "integer" and go_type == "number":
            go_type = f"number {value}"
        found.problem = (go_type, path, wanted)

    def decode(self, obj: dict[str, Any], kind: str, version: str, *, compact: bool) -> list[str]:
        """Prunes an object in place; returns the paths of its unknown fields. Raises ApiError 400 for a wrong type."""
        found = _Findings(compact)
        self._object(obj, "", found)
        if found.problem is not None:
            raise unmarshal_error(kind, version, *found.problem)
        return found.unknown


def _kind(schema: Schema) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "int-or-string"
    if schema.get("type"):
        return str(schema["type"])
    return "object" if "properties" in schema or "additionalProperties" in schema else "anything"


def _embedded(schema: Schema) -> Schema:
    """An embedded resource always has apiVersion, kind and metadata."""
    properties = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        **schema.get("properties", {}),
        "metadata": OBJECT_META,
    }
    return {**schema, "properties": properties}


def _go_type(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    if isinstance(value, (int, float)):
        return "number"
    return "object" if isinstance(value, dict) else "array"


def check_type_meta(body: dict[str, Any], kind: str, version: str) -> None:
    """Refuses what can't be read as an object: kind or apiVersion that is no string, metadata that is none."""
    for name, wanted in (("kind", str), ("apiVersion", str), ("metadata", dict)):
        value = body.get(name)
        if value is None:
            body.pop(name, None)
        elif not isinstance(value, wanted):
            raise unmarshal_error(kind, version, _go_type(value), name, "string" if wanted is str else "v1.ObjectMeta")


def unmarshal_error(kind: str, version: str, found: str, path: str, wanted: str) -> ApiError:
    """Returns the 400 of Go's decoder."""
    return bad_request(
        f'{kind} in version "{version}" cannot be handled as a {kind}: '
        f"json: cannot unmarshal {found} into Go struct field {kind}.{path} of type {wanted}"
    )


def strict_problems(unknown: list[str], duplicates: list[str]) -> list[str]:
    """Returns the message of strict field validation for each field."""
    return [f'duplicate field "{path}"' for path in duplicates] + [f'unknown field "{path}"' for path in unknown]


def strict_error(kind: str, version: str, problems: list[str]) -> ApiError:
    listed = ", ".join(problems)
    return bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: strict decoding error: {listed}')

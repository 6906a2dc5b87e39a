"""Decodes by a schema, in one pass: drops and reports unknown fields, and refuses wrong JSON types as Go does.

A `Decoder` is a schema prepared for this pass. For built-in types it checks every field, and drops nulls and empty
optional lists and maps, as Go's decoder and `omitempty` do. For custom resources it does so only in the metadata; the
rest is validated.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from typing import Any

from trainmaster_local.apiserver.apimachinery import go_values
from trainmaster_local.apiserver.apimachinery.errors import ApiError, Undecodable, bad_request
from trainmaster_local.apiserver.schema.official import DEFINITION, is_quantity
from trainmaster_local.apiserver.schema.structure import ANY, OBJECT_META, Schema, item_schema, keeps_unknown
from trainmaster_local.quantities import QuantityError, canonical

_SCALARS = {"string": str, "boolean": bool, "integer": int, "number": float}
# Go turns a null in a list or a map into this.
_ZERO: dict[str, Callable[[], Any]] = {
    "object": dict,
    "string": str,
    "integer": int,
    "boolean": bool,
    "quantity": lambda: "0",
}
_META = ("apiVersion", "kind", "metadata")


class _Findings:
    """The findings of a pass.

    `converts` is true for the result of an apply; Kubernetes converts it, and its messages differ.
    """

    __slots__ = ("converts", "custom", "problem", "unknown")

    def __init__(self, converts: bool, custom: bool) -> None:
        self.converts = converts
        self.custom = custom
        self.unknown: list[str] = []
        # The first problem; Kubernetes stops there.
        self.problem = ""


class Decoder:
    """A decoder is a place in a schema:

    `kind` is object, array, anything, or a scalar's type. `typed` is true if types are checked.
    """

    __slots__ = (
        "extra",
        "fields",
        "format",
        "go_type",
        "is_map",
        "items",
        "keeps",
        "kind",
        "python",
        "required",
        "struct",
        "typed",
    )

    def __init__(self, schema: Schema, typed: bool, *, root: bool = False) -> None:
        if schema.get("x-kubernetes-embedded-resource") and not root:
            schema = _embedded(schema)
        self.typed = typed
        self.kind = _kind(schema)
        self.format = schema.get("format", "")
        # Scalars of exactly this type need no conversion.
        closer = typed and self.format in ("date-time", "byte", "int32")
        self.python = None if closer else _SCALARS.get(self.kind)
        self.struct = schema.get(DEFINITION, "").rpartition(".")[2]
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
        self.go_type = self._go_type(schema)

    def _go_type(self, schema: Schema) -> str:
        """Returns the Go type of the decoded value."""
        name = ".".join(schema.get(DEFINITION, "").rsplit(".", 2)[-2:])
        if self.kind == "object":
            return f"map[string]{self.extra.go_type}" if self.is_map and self.extra else name or "struct"
        if self.kind == "array":
            return f"[]{self.items.go_type}" if self.items else "[]interface {}"
        names = {
            "boolean": "bool",
            "integer": self.format or "int64",
            "number": "float64",
            "int-or-string": "int32",
        }
        return names.get(self.kind, "[]uint8" if self.format == "byte" else self.kind)

    def _object(self, value: dict[str, Any], path: str, found: _Findings, struct: str) -> None:
        fields = self.fields
        struct = self.struct or struct
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
                decoder.run(child, f"{path}.{name}" if path else name, found, struct)
                optional = named and decoder.typed and name not in self.required
                if not child and optional and (kind is list or decoder.is_map):
                    del value[name]
            elif child is None:
                if decoder.typed and not named and decoder.kind in _ZERO:
                    value[name] = _ZERO[decoder.kind]()
                elif decoder.typed and not self.keeps:
                    del value[name]
            elif decoder.typed:
                # Go's paths have no keys of maps.
                here = path if not named else f"{path}.{name}" if path else name
                value[name] = decoder.scalar(child, here, found, struct)

    def run(self, value: Any, path: str, found: _Findings, struct: str) -> None:
        """Decodes a list or an object; `struct` is the Go type that it is a field of."""
        if isinstance(value, dict):
            if self.kind == "object":
                self._object(value, path, found, struct)
            elif self.kind == "quantity":
                self.scalar(value, path, found, struct)
            elif self.typed:
                self._wrong(value, path, found, struct)
            elif not self.keeps:
                _drop_all(value, path, found)
        elif self.kind == "array":
            items = self.items
            if items is None:
                return
            for index, item in enumerate(value):
                if isinstance(item, (dict, list)):
                    if items.kind != "anything":
                        items.run(item, f"{path}[{index}]", found, struct)
                elif item is None:
                    if items.typed and items.kind in _ZERO:
                        value[index] = _ZERO[items.kind]()
                elif items.typed and type(item) is not items.python:
                    value[index] = items.scalar(item, path, found, struct)
        elif self.kind == "quantity":
            self.scalar(value, path, found, struct)
        elif self.typed:
            self._wrong(value, path, found, struct)
        elif not self.keeps:
            _drop_all(value, path, found)

    def scalar(self, value: Any, path: str, found: _Findings, struct: str) -> Any:
        """Returns a scalar as a client reads it back, which doesn't depend only on the scalar's type."""
        kind = self.kind
        problem = ""
        if kind == "quantity":
            try:
                return canonical(value if isinstance(value, (str, int, float)) else "")
            except QuantityError as error:
                problem = str(error)
        elif kind == "integer" and isinstance(value, (int, float)) and not isinstance(value, bool):
            if isinstance(value, float) and not found.converts:
                problem = ""
            elif not float(value).is_integer():
                problem = f"cannot convert float64 to {self.go_type}"
            elif self.format != "int32" or -(2**31) <= value < 2**31:
                return int(value)
            elif found.converts:
                return (int(value) + 2**31) % 2**32 - 2**31
        elif kind == "string" and isinstance(value, str):
            if self.format == "byte":
                problem = _base64_problem(value)
                problem = f"error decoding from json: {problem}" if problem and found.converts else problem
            elif self.format == "date-time":
                problem = go_values.time_problem(value)
            if not problem:
                return value
        elif kind == "int-or-string" and isinstance(value, (bool, float)):
            name = "bool" if isinstance(value, bool) else f"number {go_values.number(value)}"
            problem = f"json: cannot unmarshal {name} into Go value of type int32" if found.converts else ""
        elif kind in ("anything", "int-or-string") or (kind == "number" and type(value) is int):
            return value
        self._wrong(value, path, found, struct, problem)
        return value

    def _wrong(self, value: Any, path: str, found: _Findings, struct: str, problem: str = "") -> None:
        if found.problem:
            return
        name = go_values.json_type(value)
        if self.kind in ("integer", "int-or-string") and name == "number":
            name = f"number {value!r}"
        # The metadata of custom resources is decoded separately.
        place = path.removeprefix("metadata.") if found.custom else path
        found.problem = problem or cannot_unmarshal(name, struct, place, self.go_type)

    def decode(self, obj: dict[str, Any], kind: str, version: str, *, converts: bool = False) -> list[str]:
        """Prunes an object in place; returns the paths of its unknown fields. Raises Undecodable for a wrong type."""
        found = _Findings(converts, not self.typed)
        self._object(obj, "", found, kind)
        # If a custom resource is applied, invalid times in its metadata are accepted.
        if found.problem and not (found.converts and found.custom):
            raise Undecodable(kind, version, found.problem)
        return found.unknown


def _drop_all(value: Any, path: str, found: _Findings) -> None:
    """Drops all fields of a value whose shape differs from its schema, as unknown ones."""
    if isinstance(value, dict):
        found.unknown += [f"{path}.{name}" for name in value]
        value.clear()
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _drop_all(item, f"{path}[{index}]", found)


def _kind(schema: Schema) -> str:
    if is_quantity(schema):
        return "quantity"
    if schema.get("x-kubernetes-int-or-string"):
        return "int-or-string"
    if schema.get("type"):
        return str(schema["type"])
    return "object" if "properties" in schema or "additionalProperties" in schema else "anything"


def _embedded(schema: Schema) -> Schema:
    """Returns the schema of an embedded resource, which always has apiVersion, kind and metadata."""
    properties = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        **schema.get("properties", {}),
        "metadata": OBJECT_META,
    }
    return {**schema, "properties": properties}


def check_type_meta(body: dict[str, Any], kind: str, version: str, custom: bool) -> None:
    """Refuses a body that isn't an object: kind or apiVersion isn't a string, or metadata isn't an object."""
    for name, wanted in (("kind", str), ("apiVersion", str), ("metadata", dict)):
        value = body.get(name)
        if value is None:
            body.pop(name, None)
        elif not isinstance(value, wanted):
            type_ = "string" if wanted is str else "v1.ObjectMeta"
            found = go_values.json_type(value)
            if name == "metadata" and custom:
                raise Undecodable(kind, version, f"json: cannot unmarshal {found} into Go value of type {type_}")
            raise Undecodable(kind, version, cannot_unmarshal(found, kind, name, type_))


def cannot_unmarshal(found: str, struct: str, path: str, wanted: str) -> str:
    """Returns Go's error for a wrong JSON type; its paths have no indices."""
    field = re.sub(r"\[\d+\]", "", path)
    return f"json: cannot unmarshal {found} into Go struct field {struct}.{field} of type {wanted}"


def _base64_problem(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        odd = next((i for i, c in enumerate(text) if not (c.isalnum() or c in "+/=")), len(text) // 4 * 4)
        return f"illegal base64 data at input byte {odd}"
    return ""


def strict_error(kind: str, version: str, problems: list[str]) -> ApiError:
    listed = ", ".join(problems)
    return bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: strict decoding error: {listed}')

"""Decodes Kubernetes' protobuf bodies, which `kubectl create`, `auth can-i` and other typed Go clients send.

A body consists of four magic bytes and a `runtime.Unknown`, which contains the object's type and its message
(k8s.io/apimachinery `pkg/runtime/serializer/protobuf`). The numbers of the fields are in `protobuf_fields.json`, a
table of the wire format that Kubernetes' `generated.proto` files define: `{definition: {field: number}}`. A leading `+`
marks a message whose fields JSON writes into the parent. The schemas give the fields' types. Answers are JSON, because
every client that sends protobuf accepts JSON.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

from trainmaster_local.apiserver.schema.official import DEFINITION, Schema, definition, definition_of_kind

Json = dict[str, Any]
Field = tuple[int, int, Any]

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class ProtobufError(ValueError):
    """Raised for a body that can't be decoded; the message is the reason."""


@cache
def _numbers() -> dict[str, dict[int, str]]:
    """Returns the fields of each message by number."""
    table: dict[str, dict[str, int]] = json.loads(files(__package__).joinpath("protobuf_fields.json").read_text())
    return {message: {number: name for name, number in fields.items()} for message, fields in table.items()}


def decode(body: bytes) -> Json:
    """Returns the object of a protobuf body, as JSON. Raises ProtobufError."""
    if not body.startswith(_MAGIC):
        raise ProtobufError("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
    envelope = _texts(body[len(_MAGIC) :])
    type_meta = _texts(envelope.get(1, b""))
    version, kind = _string(type_meta.get(1, b"")), _string(type_meta.get(2, b""))
    name = f"{_META}.DeleteOptions" if kind == "DeleteOptions" else definition_of_kind(version, kind)
    if name not in _numbers():
        raise ProtobufError(f'no kind "{kind}" is registered for version "{version}"')
    message = _message(envelope.get(2, b""), name, definition(name))
    return {"kind": kind, "apiVersion": version, **message}


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ProtobufError("unexpected EOF")
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def _fields(data: bytes) -> Iterator[Field]:
    """Yields each field of a message: its number, wire type and value (an int, or bytes)."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, position = _varint(data, position)
            yield number, wire, value
            continue
        if wire == _BYTES:
            length, position = _varint(data, position)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise ProtobufError(f"proto: illegal wireType {wire}")
        if position + length > len(data):
            raise ProtobufError("unexpected EOF")
        yield number, wire, data[position : position + length]
        position += length


def _texts(data: bytes) -> dict[int, bytes]:
    """Returns the bytes fields of a message."""
    return {number: value for number, wire, value in _fields(data) if wire == _BYTES}


def _string(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtobufError(f"string field contains invalid UTF-8: {error}") from error


def _message(data: bytes, name: str, schema: Schema) -> Json:
    """Returns a message as JSON. `schema` is that of the object with its fields.

    Unknown fields are ignored, as in protobuf. Go always sends its structs' empty strings and zero times, which JSON
    omits.
    """
    names = _numbers()[name]
    properties = schema.get("properties", {})
    result: Json = {}
    for number, wire, value in _fields(data):
        field = names.get(number)
        if field is None:
            continue
        if field.startswith("+"):
            _check_wire(wire, field[1:], {"type": "object"})
            result.update(_message(value, field[1:], schema))
            continue
        described = properties[field]
        _check_wire(wire, field, described)
        if described.get("type") == "array":
            result.setdefault(field, []).extend(_items(wire, value, described["items"]))
        elif "additionalProperties" in described:
            key, item = _entry(value, described["additionalProperties"])
            result.setdefault(field, {})[key] = item
        else:
            converted = _value(wire, value, described)
            if converted not in ("", None):
                result[field] = converted
    return result


def _check_wire(wire: int, field: str, schema: Schema) -> None:
    """Checks wire types: numbers are varints, and a list of them may be packed; everything else is bytes.

    Raises ProtobufError.
    """
    items = schema.get("items", schema)
    number = items.get("type") in ("integer", "boolean")
    if wire != (_VARINT if number else _BYTES) and not (number and "items" in schema and wire == _BYTES):
        raise ProtobufError(f"proto: wrong wireType = {wire} for field {field}")


def _items(wire: int, value: Any, schema: Schema) -> list[Any]:
    if schema.get("type") == "integer" and wire == _BYTES:
        numbers, position = [], 0
        while position < len(value):
            number, position = _varint(value, position)
            numbers.append(_signed(number))
        return numbers
    return [_value(wire, value, schema)]


def _entry(data: bytes, schema: Schema) -> tuple[str, Any]:
    """Returns one entry of a map."""
    key, item = "", _value(_BYTES, b"", schema)
    for number, wire, value in _fields(data):
        if number == 1:
            _check_wire(wire, "key", {"type": "string"})
            key = _string(value)
        elif number == 2:
            _check_wire(wire, "value", {**schema, "items": {}} if schema.get("type") == "array" else schema)
            item = _value(wire, value, schema)
    return key, item


def _value(wire: int, value: Any, schema: Schema) -> Any:
    name = schema.get(DEFINITION, "").rsplit(".", 1)[-1]
    match name:
        case "Time" | "MicroTime":
            return _time(value, micro=name == "MicroTime")
        case "Quantity":
            return _string(_texts(value).get(1, b"0"))
        case "IntOrString":
            numbers = {number: part for number, wire, part in _fields(value) if wire == _VARINT}
            return _string(_texts(value).get(3, b"")) if numbers.get(1) else _signed(numbers.get(2, 0))
        case "FieldsV1" | "RawExtension":
            return _json(_texts(value).get(1, b""))
    match schema.get("type"):
        case "boolean":
            return bool(value)
        case "integer":
            return _signed(value)
        case "string":
            return base64.b64encode(value).decode() if schema.get("format") == "byte" else _string(value)
        case "array":
            # A named list type, the values of `extra` in reviews, is a message with the items in its first field.
            return [_value(_BYTES, part, schema["items"]) for _, wire, part in _fields(value) if wire == _BYTES]
        case "object":
            return _message(value, schema[DEFINITION], schema)
    raise ProtobufError(f"wire type {wire} of {schema.get(DEFINITION, 'a field')} can't be read")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else None
    except ValueError as error:
        raise ProtobufError(f"raw JSON can't be read: {error}") from error


def _time(data: bytes, *, micro: bool) -> str | None:
    parts = {number: value for number, wire, value in _fields(data) if wire == _VARINT}
    if not parts:
        return None
    try:
        moment = datetime.fromtimestamp(_signed(parts.get(1, 0)), UTC)
    except (OverflowError, ValueError, OSError) as error:
        raise ProtobufError(f"time out of range: {error}") from error
    fraction = f".{parts.get(2, 0) // 1000:06d}" if micro else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"

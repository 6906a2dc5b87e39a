"""Decodes bodies (JSON, protobuf, with Go's errors for bad JSON), and negotiates the form of the answer."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import orjson

from trainmaster_local.apiserver.apimachinery import deep
from trainmaster_local.apiserver.apimachinery.errors import (
    bad_request,
    not_acceptable,
    summary,
    unsupported_media_type,
)
from trainmaster_local.apiserver.apimachinery.go_values import json_type
from trainmaster_local.apiserver.http import protobuf

_ACCEPTED = ("application/json",)
_DISCOVERY = "APIGroupDiscoveryList"


@dataclass(frozen=True)
class Body:
    """A decoded body, and a warning for each duplicate field."""

    value: Any
    duplicates: tuple[str, ...] = ()


def decode(raw: bytes, content_type: str, kind: str, accepted: tuple[str, ...] = _ACCEPTED) -> Body:
    """Decodes a body; `kind` is the expected one, for the error. Raises 400, or 415 for another content type."""
    media = content_type.partition(";")[0].strip().lower()
    if media == protobuf.MEDIA_TYPE and accepted == _ACCEPTED:
        try:
            return Body(protobuf.decode(raw))
        except protobuf.ProtobufError as error:
            problem = f"the object provided is unrecognized (must be of type {kind}): {error}"
            raise bad_request(problem) from error
    if media and media not in accepted:
        raise unsupported_media_type(accepted)
    try:
        value, shallow = deep.loads(raw)
    except deep.TooDeep as error:
        problem = f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; "
        raise bad_request(f"{problem}json parse error: {error}") from error
    except orjson.JSONDecodeError as error:
        text = raw.decode("utf-8", "replace")
        raise bad_request(
            f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; "
            f"json parse error: {go_json_error(text)} ({summary(text)})"
        ) from error
    problem = _type_meta_problem(value) if accepted == _ACCEPTED else ""
    if problem:
        unread = f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind"
        raise bad_request(f"{unread}; json parse error: {problem} ({summary(raw.decode('utf-8', 'replace'))})")
    return Body(value, tuple(f'duplicate field "{path}"' for path in repeated_keys(shallow, value)))


_TYPE_META = r'struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }'


def _type_meta_problem(value: Any) -> str:
    """Returns why a body has no readable kind and version."""
    if not isinstance(value, dict):
        return (
            f"json: cannot unmarshal {json_type(value)} into Go value of type {_TYPE_META}" if value is not None else ""
        )
    for name in ("apiVersion", "kind"):
        if not isinstance(value.get(name, ""), (str, type(None))):
            return f"json: cannot unmarshal {json_type(value[name])} into Go struct field .{name} of type string"
    return ""


def repeated_keys(raw: bytes, value: Any) -> tuple[str, ...]:
    """Returns the paths of duplicate keys. It searches for them only if the text has more keys than the value."""
    if raw.count(b'":') + raw.count(b'" :') <= _keys(value):
        return ()
    found: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, child in items:
            if key in result:
                repeated.setdefault(id(result), []).append(key)
            result[key] = child
        kept.append(result)
        return result

    repeated: dict[int, list[str]] = {}
    kept: list[dict[str, Any]] = []
    tree = json.loads(raw, object_pairs_hook=pairs)

    def walk(node: Any, path: str) -> None:
        if isinstance(node, dict):
            for key in repeated.get(id(node), ()):
                found.append(f"{path}.{key}" if path else key)
            for key, child in node.items():
                walk(child, f"{path}.{key}" if path else key)
        elif isinstance(node, list):
            for index, child in enumerate(node):
                walk(child, f"{path}[{index}]")

    walk(tree, "")
    return tuple(found)


def _keys(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(_keys(child) for child in value.values() if isinstance(child, (dict, list)))
    if isinstance(value, list):
        return sum(_keys(child) for child in value if isinstance(child, (dict, list)))
    return 0


class _Constant(Exception):
    """Raised for NaN and infinities, which Python's decoder reads."""


def _refuse_constant(text: str) -> None:
    raise _Constant(text[0])


def go_json_error(text: str) -> str:
    """Returns the error of Go's encoding/json for invalid JSON."""
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except _Constant as error:
        return f"invalid character '{error}' looking for beginning of value"
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()):
            return "unexpected end of JSON input"
        character = text[error.pos]
        if error.msg.startswith("Expecting property name"):
            place = "looking for beginning of object key string"
        elif "':'" in error.msg:
            place = "after object key"
        elif "','" in error.msg:
            opened = re.findall(r"[\[{\]}]", text[: error.pos])
            place = "after array element" if _innermost(opened) == "[" else "after object key:value pair"
        elif error.msg.startswith("Extra data"):
            place = "after top-level value"
        elif "control character" in error.msg:
            place = "in string literal"
        else:
            place = "looking for beginning of value"
        shown = "\\'" if character == "'" else character
        return f"invalid character '{shown}' {place}"
    except RecursionError:
        # The error is in a deep part. Go would name its place; this message doesn't.
        return "invalid JSON"
    return "invalid JSON"


def _innermost(brackets: list[str]) -> str:
    stack: list[str] = []
    for bracket in brackets:
        if bracket in "[{":
            stack.append(bracket)
        elif stack:
            stack.pop()
    return stack[-1] if stack else ""


@dataclass(frozen=True)
class Form:
    """An answer has a form: `as_` is empty, Table, PartialObjectMetadata(List) or APIGroupDiscoveryList."""

    as_: str = ""


def negotiate(
    accept: str, allowed: tuple[str, ...] = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
) -> Form:
    """Returns the first form in an Accept header that this server supports. Raises 406 if there is none."""
    if not accept:
        return Form()
    for clause in accept.split(","):
        media, *parameters = (part.strip() for part in clause.split(";"))
        values = dict(part.split("=", 1) for part in parameters if "=" in part)
        if media not in ("application/json", "*/*", "application/*"):
            continue
        as_ = values.get("as", "")
        if not as_:
            return Form()
        current = "v2" if as_ == _DISCOVERY else "v1"
        if as_ in allowed and values.get("v", current) == current:
            return Form(as_)
    raise not_acceptable(_ACCEPTED)

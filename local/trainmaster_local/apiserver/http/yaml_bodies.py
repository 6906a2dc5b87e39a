"""Reads applied configurations as YAML, as sigs.k8s.io/yaml with go-yaml 2 does.

This includes JSON: `\\ud83d\\ude00` is then an error instead of a character.

PyYAML wraps libyaml, and go-yaml is a translation of libyaml, so their messages are equal. Only go-yaml's rules for
which plain scalars are numbers or booleans differ (`_resolved`).
"""

from __future__ import annotations

import base64
import math
import re
from typing import Any

import orjson
import yaml

from trainmaster_local.apiserver.apimachinery import deep, go_values
from trainmaster_local.apiserver.apimachinery.errors import ApiError, bad_request
from trainmaster_local.apiserver.http.codec import Body, repeated_keys

# YAML and JSON read these differently: surrogates, `\/`, control characters and line breaks of Unicode in strings.
_NOT_AS_JSON = re.compile(
    rb"\\u[dD][89a-fA-F]|\\/|\x7f|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]|\xef\xbb\xbf|\xef\xbf[\xbe\xbf]"
)
_ESCAPED_SLASH = re.compile(rb'(?:[^"]|"(?:[^"\\]|\\[^/])*")*"(?:[^"\\]|\\[^/])*\\/')
_PLAIN = "plain"
_TRUE = frozenset(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"))
_FALSE = frozenset(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"))
_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"([-+]?)\.(inf|Inf|INF)")
_BASES = (("0x", 16), ("0X", 16), ("0b", 2), ("0B", 2), ("0o", 8), ("0O", 8), ("0", 8))
_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.CSafeLoader):
    """This loader marks scalars without quotes and without a tag as plain."""


_Loader.yaml_implicit_resolvers = {None: [(_PLAIN, re.compile(""))]}


def decode(raw: bytes) -> Body:
    """Decodes a body; an empty one is null. Raises ApiError 400."""
    if raw[:1] == b"{" and not _NOT_AS_JSON.search(raw):
        try:
            value, shallow = deep.loads(raw)
        except (orjson.JSONDecodeError, deep.TooDeep):
            pass
        else:
            if not repeated_keys(shallow, value):
                return Body(value)
    # libyaml knows JSON's escaped slash, go-yaml 2 doesn't.
    if raw[:1] == b"{" and (slash := _ESCAPED_SLASH.match(raw)):
        line = raw.count(b"\n", 0, slash.end())
        raise _refused(f"yaml: {f'line {line + 1}: ' if line else ''}found unknown escape character")
    if not raw.strip():
        return Body(None)
    return _Document().read(raw)


def _refused(problem: str) -> ApiError:
    return bad_request(f"error decoding YAML: error converting YAML to JSON: {problem}")


class _Document:
    """This reader decodes the first document of a body, and finds its duplicate keys."""

    def __init__(self) -> None:
        self._duplicates: list[str] = []
        self._open: set[int] = set()

    def read(self, raw: bytes) -> Body:
        try:
            loader = _Loader(raw)
            node = loader.get_node() if loader.check_node() else None
        except yaml.composer.ComposerError as error:
            assert error.problem_mark is not None
            alias = re.split(r"[^-\w]", raw.decode()[error.problem_mark.index + 1 :])[0]
            raise _refused(f"yaml: unknown anchor '{alias}' referenced") from error
        except yaml.MarkedYAMLError as error:
            raise _refused(f"yaml: {_where(error)}{error.problem}") from error
        except yaml.reader.ReaderError as error:
            raise _refused(f"yaml: {error.reason}") from error
        value = None if node is None else self._value(node)
        if value is not None and not isinstance(value, dict):
            found = {str: "string", bool: "bool", list: "array"}.get(type(value), "number")
            raise bad_request(
                "error decoding YAML: error unmarshaling JSON: while decoding JSON: "
                f"json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
            )
        return Body(value, tuple(self._duplicates))

    def _value(self, node: yaml.Node) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return _resolved(node)
        if id(node) in self._open:
            raise _refused("yaml: anchor value contains itself")
        self._open.add(id(node))
        value = self._list(node) if isinstance(node, yaml.SequenceNode) else self._map(node, {})
        self._open.discard(id(node))
        return value

    def _list(self, node: yaml.Node) -> list[Any]:
        return [self._value(item) for item in node.value]

    def _map(self, node: yaml.Node, result: dict[str, Any]) -> dict[str, Any]:
        given: set[str] = set()
        for name, child in node.value:
            if name.tag == _PLAIN and name.value == "<<":
                self._merge(child, result)
                continue
            key = self._key(name, child)
            if key in given:
                line = child.start_mark.line + 1
                self._duplicates.append(f"line {line}: key {go_values.quoted(key)} already set in map")
            given.add(key)
            result[key] = self._value(child)
        return result

    def _merge(self, node: yaml.Node, result: dict[str, Any]) -> None:
        sources = reversed(node.value) if isinstance(node, yaml.SequenceNode) else [node]
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                raise _refused("yaml: map merge requires map or sequence of maps as the value")
            self._map(source, result)

    def _key(self, node: yaml.Node, child: yaml.Node) -> str:
        key = self._value(node)
        if isinstance(key, (dict, list)):
            raise _refused(f"yaml: invalid map key: {go_values.syntax(key)}")
        if key is None:
            value = go_values.syntax(self._value(child))
            raise _refused(f"unsupported map key of type: %!s(<nil>), key: <nil>, value: {value}")
        return key if isinstance(key, str) else go_values.plain(key)


def _where(error: yaml.MarkedYAMLError) -> str:
    """Returns the line of an error as go-yaml counts it; empty for the first line."""
    line = error.problem_mark.line if error.problem_mark is not None else 0
    if line and isinstance(error, yaml.scanner.ScannerError):
        line += 1
    return f"line {line}: " if line else ""


def _resolved(node: yaml.ScalarNode) -> Any:
    text: str = node.value
    if node.tag == f"{_TAG}binary":
        return base64.b64decode(text).decode(errors="replace")
    if node.tag not in (_PLAIN, *(_TAG + name for name in ("int", "float", "bool", "null"))):
        return text
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if match := _INFINITE.fullmatch(text):
        raise _refused(f"json: unsupported value: {match[1] or '+'}Inf")
    if text in (".nan", ".NaN", ".NAN"):
        raise _refused("json: unsupported value: NaN")
    return _number(text.replace("_", "")) if text[:1] in "0123456789+-." else text


def _number(text: str) -> Any:
    """Returns a plain scalar's number; the scalar itself if it isn't a number."""
    digits = text.lstrip("+-") if text[1:2] not in ("+", "-") else text
    for prefix, base in _BASES:
        if digits.startswith(prefix) and len(digits) > len(prefix):
            try:
                number = int(digits[len(prefix) :], base)
            except ValueError:
                break
            return _json_number(-number if text[0] == "-" else number)
    if digits.isdecimal() and digits.isascii() and (digits == "0" or digits[0] != "0"):
        return _json_number(int(text))
    if _FLOAT.fullmatch(text):
        fraction = float(text)
        if math.isinf(fraction):
            return text
        return int(fraction) if fraction.is_integer() and abs(fraction) < 2**63 else fraction
    return text


def _json_number(number: int) -> int | float:
    return number if -(2**63) <= number < 2**63 else float(number)

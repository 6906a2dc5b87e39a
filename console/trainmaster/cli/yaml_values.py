"""Evaluates YAML nodes as kubectl does, reports values that kubectl would refuse or lose, and writes YAML.

kubectl's library (go-yaml v2) reads YAML 1.1 in its own way. As in YAML 1.1, yes, on and y are true, 010 is 8, and
1_000 is 1000; as in YAML 1.2, 1e-4 is a number, and 1:30 and a date are text. 1.0 and 1e3 are sent as integers, because
JSON doesn't distinguish 1.0 from 1. `<<` is merged in the order of the fields, so its fields replace those of the same
name before it. Numbers as keys become text, and the last of two equal keys is used.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

from trainmaster_operator.api.printable import UNSAFE, yaml_escapes
from trainmaster_operator.api.values import HALF_A_CHARACTER, show

TEMPLATE = (
    "'{{' begins a template, which Helm renders; check what it renders (helm template . | trainmaster validate -)"
)
_PLAIN = "!plain"
_MERGE = "tag:yaml.org,2002:merge"
# Maximum number of values after resolving all aliases. A job that etcd accepts contains fewer; nine levels of ten
# aliases would make 10^9.
_MOST_VALUES = 1_000_000
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")

_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
}
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INTEGER = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[oO]?([0-7]+)|0[bB]([01]+)|(0|[1-9][0-9]*))")
_BASES = (16, 8, 2, 10)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_MOST_UNSIGNED = 2**64
_MOST_DIGITS = len(str(_MOST_UNSIGNED))
_MOST_SIGNED = 2**63
_STANDARD = "tag:yaml.org,2002:"
_TAGS = {"null": type(None), "bool": bool, "int": int, "float": int | float}

# Maps the id of a mapping's node to the mapping's fields after resolving `<<`: by name, the nodes of key and value.
Fields = dict[int, dict[str, tuple[yaml.Node, yaml.Node]]]


@dataclass(frozen=True)
class Mistake:
    """Mistake is an error at a position in a file. Lines and columns are counted from 1."""

    line: int
    column: int
    message: str

    def at(self, file: str) -> str:
        """Returns the message after its position in a file. Editors recognize the format of the position."""
        return f"{file}:{self.line}:{self.column}: {self.message}"


def place(mark: yaml.Mark | None) -> tuple[int, int]:
    """Returns the line and column of a mark, counted from 1. Without a mark, returns (1, 1)."""
    return (1, 1) if mark is None else (mark.line + 1, mark.column + 1)


class Loader(yaml.SafeLoader):
    """Loader composes nodes, and leaves the interpretation of plain scalars to `plain_scalar`."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Composes a node. An anchor may be redefined, as in go-yaml."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if not isinstance(event, yaml.AliasEvent):
            self.anchors.pop(getattr(event, "anchor", None), None)
        return super().compose_node(parent, index)

    def scan_to_next_token(self) -> None:
        """Skips blanks between tokens. Like go-yaml, also skips tabs where neither a line nor a key can begin."""
        super().scan_to_next_token()
        while self.peek() == "\t" and (self.flow_level or not self.allow_simple_key):
            self.forward()
            super().scan_to_next_token()


Loader.yaml_implicit_resolvers = {None: [(_PLAIN, re.compile(""))]}


class Reader:
    """Reader evaluates a document's nodes and collects their mistakes."""

    def __init__(self, is_json: bool) -> None:
        self.mistakes: list[Mistake] = []
        self.fields: Fields = {}
        self._is_json = is_json
        # Maps a node's id to its value and the number of values in it. An alias is the same node as its anchor.
        self._known: dict[int, tuple[Any, int]] = {}
        self._open: set[int] = set()

    def value(self, node: yaml.Node, path: str) -> Any:
        """Returns a document's value, or None for a template or if aliases make too many values."""
        value, size = self._read(node, path)
        if any(each.message.endswith(TEMPLATE) for each in self.mistakes):
            # A template's other mistakes may disappear when it is rendered.
            return None
        if size > _MOST_VALUES:
            message = f"its aliases (*name) make more than {_MOST_VALUES} values of it; write out what is needed"
            self._add(node, "", message)
            return None
        return value

    def _add(self, node: yaml.Node, path: str, message: str) -> None:
        self.mistakes.append(Mistake(*place(node.start_mark), f"{path}: {message}" if path else message))

    def _read(self, node: yaml.Node, path: str) -> tuple[Any, int]:
        if id(node) in self._known:
            return self._known[id(node)]
        if id(node) in self._open:
            self._add(node, path, "its alias contains itself; write out what is needed")
            return None, 1
        self._open.add(id(node))
        read = self._scalar(node, path) if isinstance(node, yaml.ScalarNode) else self._collection(node, path)
        self._open.discard(id(node))
        self._known[id(node)] = read
        return read

    def _collection(self, node: yaml.Node, path: str) -> tuple[Any, int]:
        if isinstance(node, yaml.SequenceNode):
            items = [self._read(item, f"{path}[{position}]") for position, item in enumerate(node.value)]
            return [value for value, _ in items], 1 + sum(size for _, size in items)
        fields = self._fields(node, path)
        self.fields[id(node)] = fields
        read = {name: self._read(value, f"{path}.{name}" if path else name) for name, (_, value) in fields.items()}
        return {name: value for name, (value, _) in read.items()}, 1 + sum(size for _, size in read.values())

    def _fields(self, node: yaml.Node, path: str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Returns a mapping's fields in order. As in go-yaml, the last of equal names is used, even one from `<<`."""
        fields: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        given: set[str] = set()
        for key, value in node.value:
            if key.tag == _MERGE or (key.tag == _PLAIN and key.value == "<<"):
                fields.update(self._merged(value, path))
                continue
            name = self._key(key, path)
            if name is None:
                continue
            if name in given:
                self._add(key, f"{path}.{name}".removeprefix("."), "is given twice; keep one")
            given.add(name)
            fields[name] = (key, value)
        return fields

    def _merged(self, node: yaml.Node, path: str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Returns the fields that `<<` merges. If several mappings contain a field, the first one is used."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for source in reversed(sources):
            if not isinstance(source, yaml.MappingNode) or id(source) in self._open:
                message = "<< merges mappings that stand before it; give the alias of one, such as *base"
                self._add(source, path, message)
                continue
            self._read(source, path)
            merged.update(self.fields[id(source)])
        return merged

    def _key(self, node: yaml.Node, path: str) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            is_template = isinstance(node, yaml.MappingNode) and node.flow_style
            message = TEMPLATE if is_template else "a list or a mapping can't be a key; write a text"
            self._add(node, path, message)
            return None
        value, _ = self._scalar(node, path)
        if value is None:
            self._add(node, path, "null can't be a key; write it in quotes")
            return None
        name = str(value).lower() if isinstance(value, bool) else str(value)
        if isinstance(value, bool) and node.tag == _PLAIN and node.value.lower() != name:
            self._add(node, path, f"kubectl reads the key {node.value} as {name}; write it in quotes")
        return name

    def _scalar(self, node: yaml.ScalarNode, path: str) -> tuple[Any, int]:
        if node.tag == _PLAIN:
            value = plain_scalar(node.value)
        else:
            try:
                value = tagged_scalar(node.tag, node.value)
            except ValueError as error:
                self._add(node, path, f"{show(node.value)} {error}; remove the tag, or give what it says")
                return None, 1
        if isinstance(value, float) and not math.isfinite(value):
            self._add(node, path, f"{node.value} is not a finite number; use one")
            return None, 1
        if isinstance(value, str) and _HALF_CHARACTER.search(value):
            if self._is_json:
                value = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
            if _HALF_CHARACTER.search(value):
                self._add(node, path, HALF_A_CHARACTER)
                return value.encode("utf-8", "replace").decode(), 1
        return value, 1


def plain_scalar(text: str) -> Any:
    """Returns the value of a scalar without quotes or a tag."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", "").lower())
    digits = text.replace("_", "") if text[:1] in "+-0123456789" else text
    whole = _INTEGER.fullmatch(digits)
    # Longer numbers don't fit into 64 bits, and Python refuses to parse more than 4,300 digits.
    if whole is not None and len(whole[5] or "") <= _MOST_DIGITS:
        sign, *written = whole.groups()
        number = next(int(each, base) for each, base in zip(written, _BASES, strict=True) if each is not None)
        if number < (_MOST_SIGNED if sign else _MOST_UNSIGNED):
            return -number if sign == "-" else number
    if _FLOAT.fullmatch(digits):
        value = float(digits)
        # A number that is too large for a float is treated as text.
        if not math.isinf(value):
            return int(value) if value.is_integer() and abs(value) < _MOST_SIGNED else value
    return text


def tagged_scalar(tag: str, text: str) -> Any:
    """Returns the value of a tagged scalar. Raises ValueError if the text doesn't fit the tag."""
    name = tag.removeprefix(_STANDARD)
    if name == "binary":
        try:
            return base64.b64decode("".join(text.split()), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise ValueError("isn't base64 of a text") from error
    if name not in _TAGS or name == tag:
        return text
    value = plain_scalar(text)
    if not isinstance(value, _TAGS[name]):
        raise ValueError(f"isn't of the type !!{name}")
    return value


def yaml_text(documents: Iterable[Any]) -> str:
    """Returns the documents as YAML. Fields keep their order, and control characters are escaped."""
    return yaml_escapes(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True))


class _Dumper(yaml.SafeDumper):
    """_Dumper double-quotes strings with control characters, because YAML allows escapes only there."""

    def ignore_aliases(self, data: Any) -> bool:
        """Writes a value in full wherever it occurs, without aliases."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if UNSAFE.search(text) else "|" if "\n" in text else None
    if style is None and plain_scalar(text) != text:
        # PyYAML wouldn't quote texts such as y and n, but kubectl would read them as true and false.
        style = "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)

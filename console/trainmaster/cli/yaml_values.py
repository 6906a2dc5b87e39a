"""The nodes of a YAML document become values as kubectl makes them, and what it refuses or loses is collected.

kubectl merges `<<` in the order of the fields, so that it also replaces what stands before it, makes text of keys that
are numbers, and keeps the last of two equal keys.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import yaml

from trainmaster.cli.yaml_messages import TEMPLATE
from trainmaster.cli.yaml_scalars import key_text, plain_scalar, tagged_scalar
from trainmaster_operator.api.values import HALF_A_CHARACTER, show

_PLAIN = "!plain"
_MERGE = "tag:yaml.org,2002:merge"
# Values with all aliases followed; a job that etcd takes has fewer. Nine levels of ten aliases each have 10^9.
_MOST_VALUES = 1_000_000
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")

# The fields of each mapping, `<<` resolved, by the mapping's identity: the node of the key, and of the value.
Fields = dict[int, dict[str, tuple[yaml.Node, yaml.Node]]]


@dataclass(frozen=True)
class Mistake:
    """Mistake is something wrong at a place of a file; lines and columns are counted from 1."""

    line: int
    column: int
    message: str


def place(mark: yaml.Mark | None) -> tuple[int, int]:
    """Returns the line and the column of a mark, from 1; the beginning where there is none."""
    return (1, 1) if mark is None else (mark.line + 1, mark.column + 1)


class Loader(yaml.SafeLoader):
    """The loader composes nodes, and leaves the meaning of plain scalars to `scalars`."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Composes a node. An anchor may be given anew, as go-yaml has it."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if not isinstance(event, yaml.AliasEvent):
            self.anchors.pop(getattr(event, "anchor", None), None)
        node: yaml.Node | None = super().compose_node(parent, index)
        return node

    def scan_to_next_token(self) -> None:
        """Skips what is between tokens: tabs too, where go-yaml does, that is where no line and no key can begin."""
        super().scan_to_next_token()
        while self.peek() == "\t" and (self.flow_level or not self.allow_simple_key):
            self.forward()
            super().scan_to_next_token()


Loader.yaml_implicit_resolvers = {None: [(_PLAIN, re.compile(""))]}


class Reader:
    """Makes the values of a document's nodes and collects what is wrong with them."""

    def __init__(self, is_json: bool) -> None:
        self.mistakes: list[Mistake] = []
        self.fields: Fields = {}
        self._is_json = is_json
        # By the node's identity, since an alias is the node that it names: the value, and how many values it has in it.
        self._known: dict[int, tuple[Any, int]] = {}
        self._open: set[int] = set()

    def value(self, node: yaml.Node, path: str) -> Any:
        """Returns the value of a document; None where it is a template, or too much by its aliases."""
        value, size = self._read(node, path)
        if any(each.message.endswith(TEMPLATE) for each in self.mistakes):
            # Whatever else is wrong with a template is right in what it renders.
            return None
        if size > _MOST_VALUES:
            self._add(node, f"its aliases (*name) make more than {_MOST_VALUES} values of it; write out what is needed")
            return None
        return value

    def _add(self, node: yaml.Node, message: str) -> None:
        self.mistakes.append(Mistake(*place(node.start_mark), message))

    def _read(self, node: yaml.Node, path: str) -> tuple[Any, int]:
        if id(node) in self._known:
            return self._known[id(node)]
        if id(node) in self._open:
            self._add(node, f"{path}: its alias stands in itself; write out what is needed")
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
        """Returns a mapping's fields in their order, of which a later one counts: also for `<<`, as go-yaml has it."""
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
                self._add(key, f"{path}.{name}: is given twice; keep one".removeprefix("."))
            given.add(name)
            fields[name] = (key, value)
        return fields

    def _merged(self, node: yaml.Node, path: str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Returns the fields that `<<` brings; of several mappings the first that has a field counts."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for source in reversed(sources):
            if not isinstance(source, yaml.MappingNode) or id(source) in self._open:
                where = f"{path}: " if path else ""
                self._add(
                    source, f"{where}<< merges mappings that stand before it; give the alias of one, such as *base"
                )
                continue
            self._read(source, path)
            merged.update(self.fields[id(source)])
        return merged

    def _key(self, node: yaml.Node, path: str) -> str | None:
        where = f"{path}: " if path else ""
        if not isinstance(node, yaml.ScalarNode):
            is_template = isinstance(node, yaml.MappingNode) and node.flow_style
            message = TEMPLATE if is_template else "a list or a mapping can't be a key; write a text"
            self._add(node, f"{where}{message}")
            return None
        value, _ = self._scalar(node, path)
        name = key_text(value)
        if name is None:
            self._add(node, f"{where}null can't be a key; write it in quotes")
        elif isinstance(value, bool) and node.tag == _PLAIN and node.value.lower() != name:
            self._add(node, f"{where}kubectl reads the key {node.value} as {name}; write it in quotes")
        return name

    def _scalar(self, node: yaml.ScalarNode, path: str) -> tuple[Any, int]:
        where = f"{path}: " if path else ""
        if node.tag == _PLAIN:
            value = plain_scalar(node.value)
        else:
            try:
                value = tagged_scalar(node.tag, node.value)
            except ValueError as error:
                self._add(node, f"{where}{show(node.value)} {error}; remove the tag, or give what it says")
                return None, 1
        if isinstance(value, float) and not math.isfinite(value):
            self._add(node, f"{where}{node.value} is not a finite number; use one")
            return None, 1
        if isinstance(value, str) and _HALF_CHARACTER.search(value):
            if self._is_json:
                value = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
            if _HALF_CHARACTER.search(value):
                self._add(node, f"{where}{HALF_A_CHARACTER}")
                return value.encode("utf-8", "replace").decode(), 1
        return value, 1

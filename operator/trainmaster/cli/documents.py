"""Manifests are read from files as kubectl reads them, with the place of every field.

kubectl's YAML differs from PyYAML's in what people write: 1e-4 is a number there, and a date is text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainmaster.api.limits import MAX_NESTING

_STDIN = "-"


class UnreadableFile(Exception):
    """A file can't be read, or isn't YAML; the text begins with its name and the place."""


@dataclass(frozen=True)
class Document:
    """Document is one document of a file."""

    source: str
    # Documents are numbered from 1, as people count.
    position: int
    value: Any
    node: yaml.Node
    # Keys that stand twice in a mapping, of which YAML would keep only one.
    repeated: tuple[tuple[str, yaml.Node], ...]

    def place(self, field: str) -> str:
        """Returns `file:line:column` of a field, or of the nearest parent that is there."""
        return place(self.source, _find(self.node, re.findall(r"[^.\[\]]+", field)))


class _Loader(yaml.SafeLoader):
    """The loader reads scalars as go-yaml does for kubectl."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def read_documents(source: str) -> list[Document]:
    """Returns the documents of a file or of stdin (`-`), without empty ones. Raises UnreadableFile."""
    try:
        text = sys.stdin.read() if source == _STDIN else Path(source).read_text(encoding="utf-8")
    except OSError as error:
        raise UnreadableFile(f"{source}: {error.strerror}; name a file that can be read") from error
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"{source}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    try:
        return list(_documents(source, text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = "" if mark is None else f":{mark.line + 1}:{mark.column + 1}"
        raise UnreadableFile(f"{source}{at}: not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise UnreadableFile(f"{source}: not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        message = f"has too many lists and mappings in each other; use at most {MAX_NESTING}"
        raise UnreadableFile(f"{source}: {message}") from error


def _documents(source: str, text: str) -> Iterator[Document]:
    loader = _Loader(text)
    position = 0
    while loader.check_node():
        position += 1
        node = loader.get_node()
        value = None if node is None else loader.construct_document(node)
        if node is not None and value is not None:
            yield Document(source, position, value, node, tuple(_repeated(node, "")))


def place(source: str, node: yaml.Node) -> str:
    """Returns `file:line:column` of a node."""
    return f"{source}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _find(node: yaml.Node, path: list[str]) -> yaml.Node:
    at = node
    for part in path:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == part), None)
            if found is None:
                return at
            at, node = found
        elif isinstance(node, yaml.SequenceNode) and part.isdigit() and int(part) < len(node.value):
            at = node = node.value[int(part)]
        else:
            return at
    return at


def _repeated(node: yaml.Node, path: str) -> Iterator[tuple[str, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        seen: set[Hashable] = set()
        for key, value in node.value:
            here = f"{path}.{key.value}" if path else str(key.value)
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    yield here, key
                seen.add(key.value)
            yield from _repeated(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            yield from _repeated(item, f"{path}[{position}]")

"""Manifests are read from files as kubectl reads them, with the place of every field.

A file is cut at the lines that begin with `---`, so that what is wrong with one document leaves the others readable.
Each is composed to YAML's nodes, which know their places; `yaml_values` makes values of them as kubectl does.
"""

from __future__ import annotations

import codecs
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainmaster.api.limits import MAX_NESTING
from trainmaster.cli.yaml_messages import syntax_message
from trainmaster.cli.yaml_values import Fields, Loader, Mistake, Reader, place

_STDIN = "-"
# kubectl takes these files of a folder.
_SUFFIXES = (".json", ".yaml", ".yml")
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (b"", "utf-8"),
)


class UnreadableFile(Exception):
    """A file can't be read; the text begins with its name."""


@dataclass(frozen=True)
class Document:
    """Document is one document of a file, or what stands against reading it."""

    # None where the document can't be read.
    value: Any
    mistakes: tuple[Mistake, ...]
    node: yaml.Node | None = None
    fields: Fields | None = None

    def place(self, field: str) -> tuple[int, int]:
        """Returns line and column of a field, or of the nearest parent that is there."""
        at, node, rest = self.node, self.node, field
        while rest and node is not None:
            found = self._next(node, rest)
            if found is None:
                break
            at, node, rest = found
        return (1, 1) if at is None else place(at.start_mark)

    def _next(self, node: yaml.Node, rest: str) -> tuple[yaml.Node, yaml.Node, str] | None:
        """Returns where the first part of a path is, its value, and the rest of the path. Names may have dots."""
        item = re.match(r"\[(\d+)\]\.?", rest)
        if isinstance(node, yaml.SequenceNode) and item is not None and int(item[1]) < len(node.value):
            inner = node.value[int(item[1])]
            return inner, inner, rest[item.end() :]
        named = (self.fields or {}).get(id(node), {})
        fitting = [name for name in named if rest == name or rest.startswith((f"{name}.", f"{name}["))]
        if not fitting:
            return None
        longest = max(fitting, key=len)
        key, value = named[longest]
        return key, value, rest[len(longest) :].removeprefix(".")


def files_of(source: str) -> list[str]:
    """Returns the files that a FILE names: itself, or those of a folder that kubectl takes. Raises UnreadableFile."""
    if source == "":
        raise UnreadableFile("'' is no file; name one, or - for stdin")
    if source == _STDIN or not Path(source).is_dir():
        return [source]
    try:
        files = sorted(str(path) for path in Path(source).iterdir() if path.suffix in _SUFFIXES and path.is_file())
    except OSError as error:
        raise UnreadableFile(f"{source}: {error.strerror}; name a folder that can be read") from error
    if not files:
        raise UnreadableFile(f"{source}: there is no {' or '.join(_SUFFIXES)} file in this folder; name one that has")
    return files


def read_documents(source: str) -> list[Document]:
    """Returns the documents of a file or of stdin (`-`), without empty ones. Raises UnreadableFile."""
    try:
        data = sys.stdin.buffer.read() if source == _STDIN else Path(source).read_bytes()
    except OSError as error:
        raise UnreadableFile(f"{source}: {error.strerror}; name a file that can be read") from error
    mark, encoding = next((mark, encoding) for mark, encoding in _MARKS if data.startswith(mark))
    try:
        text = data.removeprefix(mark).decode(encoding)
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        name = encoding.upper()[:6].rstrip("-")
        raise UnreadableFile(f"{source}:{line}:{column}: this byte is not {name}; save the file as UTF-8") from error
    return [document for line, piece in _pieces(text) for document in _read(line, piece)]


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """Yields the texts between the lines that begin with `---`, each with the number of lines before it."""
    begin = 0
    for separator in re.finditer(r"^---([^\n]*)$", text, re.MULTILINE):
        yield text.count("\n", 0, begin), text[begin : separator.start()]
        begin = separator.end()
        # kubectl takes only a comment behind it.
        if separator[1].strip() and not separator[1].strip().startswith("#"):
            yield text.count("\n", 0, begin), separator[0]
    yield text.count("\n", 0, begin), text[begin:]


def _read(line: int, piece: str) -> Iterator[Document]:
    """Yields the documents of a piece that is preceded by `line` lines: of JSON there may be several."""
    if piece.startswith("---"):
        message = "not YAML: kubectl reads nothing behind '---'; begin the document on the next line"
        yield Document(None, (Mistake(line + 1, 1, message),))
        return
    if piece.lstrip().startswith("%"):
        line += len(piece[: piece.index("%")].split("\n"))
        yield Document(None, (Mistake(line, 1, "not YAML: kubectl reads no directives (%); remove the line"),))
        return
    # The blank text before it gives each node its place in the file.
    before = "\n" * line
    objects = _json_objects(piece)
    for begin, end in objects or [(0, len(piece))]:
        blank = before + re.sub(r"[^\n]", " ", piece[:begin])
        # JSON may be indented with tabs, YAML not; in a text JSON has none.
        text = piece[begin:end].replace("\t", " ") if objects else piece[begin:end]
        composed = _composed(blank + text, is_json=bool(objects))
        if composed is not None:
            yield composed


def _json_objects(piece: str) -> list[tuple[int, int]]:
    """Returns begin and end of each object where a piece is JSON: kubectl reads what begins with a brace as JSON."""
    found = []
    decoder, at = json.JSONDecoder(), 0
    while (begin := len(piece) - len(piece[at:].lstrip())) < len(piece):
        if piece[begin] != "{":
            return []
        try:
            _, at = decoder.raw_decode(piece, begin)
        except (ValueError, RecursionError):
            return []
        found.append((begin, at))
    return found


def _composed(text: str, *, is_json: bool) -> Document | None:
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        reader = Reader(is_json)
        value = reader.value(node, "")
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        message = f"not YAML: the character {chr(int(error.character))!r} can't stand there; remove it"
        return Document(None, (Mistake(line, column, message),))
    except yaml.MarkedYAMLError as error:
        mark, message = syntax_message(error, text)
        return Document(None, (Mistake(*place(mark), f"not YAML: {message}"),))
    except RecursionError:
        line = len(text) - len(text.lstrip("\n")) + 1
        message = f"has too many lists and mappings in each other; use at most {MAX_NESTING}"
        return Document(None, (Mistake(line, 1, message),))
    if value is None and not reader.mistakes:
        return None
    return Document(value, tuple(reader.mistakes), node, reader.fields)

"""Reads manifests from files as kubectl does, with the position of every field.

A file is split at lines that begin with `---`, so that a mistake in one document leaves the others readable. Each
document is parsed into YAML nodes, which know their positions; `yaml_values` evaluates them as kubectl does. For common
mistakes, PyYAML's messages are replaced by our own, which name a remedy.
"""

from __future__ import annotations

import codecs
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from trainmaster.cli.terminal import say
from trainmaster.cli.yaml_values import TEMPLATE, Fields, Loader, Mistake, Reader, place
from trainmaster.client.errors import ClientError
from trainmaster_operator.api.limits import MAX_NESTING

_STDIN = "-"
# In a folder, kubectl reads only the files with these suffixes.
_SUFFIXES = (".json", ".yaml", ".yml")
# A chart of CustomResourceDefinitions can have a few MB; reading takes some seconds per MB.
MAX_BYTES, MAX_DOCUMENTS = 16 * 1024 * 1024, 10_000
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (b"", "utf-8"),
)
_BLANKS = re.compile(r"\s*")


class UnreadableFile(ClientError):
    """A file can't be read. The message begins with the file's name."""


@dataclass(frozen=True)
class Document:
    """Document is one document of a file, or the mistakes that make it unreadable."""

    # None if the document can't be read.
    value: Any
    mistakes: tuple[Mistake, ...]
    node: yaml.Node | None = None
    fields: Fields | None = None

    def place(self, field: str) -> tuple[int, int]:
        """Returns the line and column of a field, or of its nearest existing parent."""
        at, node, rest = self.node, self.node, field
        while rest and node is not None:
            found = self._next(node, rest)
            if found is None:
                break
            at, node, rest = found
        return (1, 1) if at is None else place(at.start_mark)

    def _next(self, node: yaml.Node, rest: str) -> tuple[yaml.Node, yaml.Node, str] | None:
        """Returns the key's node and the value's node for the first part of a path, and the rest of the path.

        Field names may contain dots.
        """
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


def documents_of(source: str) -> Iterator[tuple[str, list[Document] | None]]:
    """Yields a file, or each file of a folder, with its documents. If one can't be read, prints why and yields None."""
    try:
        files = files_of(source)
    except UnreadableFile as error:
        say(str(error), error=True)
        yield source, None
        return
    for file in files:
        try:
            yield file, read_documents(file)
        except UnreadableFile as error:
            say(str(error), error=True)
            yield file, None


def files_of(source: str) -> list[str]:
    """Returns the file itself or, for a folder, those of its files that kubectl would read. Raises UnreadableFile."""
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
    """Returns the non-empty documents of a file or of stdin (`-`). Raises UnreadableFile."""
    try:
        data = sys.stdin.buffer.read() if source == _STDIN else Path(source).read_bytes()
    except OSError as error:
        raise UnreadableFile(f"{source}: {error.strerror}; name a file that can be read") from error
    if len(data) > MAX_BYTES:
        raise UnreadableFile(f"{source}: has more than {MAX_BYTES >> 20} MiB; split it, or name the jobs' file")
    mark, encoding = next((mark, encoding) for mark, encoding in _MARKS if data.startswith(mark))
    try:
        text = data.removeprefix(mark).decode(encoding)
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        name = encoding.upper()[:6].rstrip("-")
        raise UnreadableFile(f"{source}:{line}:{column}: this byte is not {name}; save the file as UTF-8") from error
    read = (each for line, piece in _pieces(text) for each in _read(line, piece) if each is not None)
    found = list(islice(read, MAX_DOCUMENTS + 1))
    if len(found) > MAX_DOCUMENTS:
        raise UnreadableFile(f"{source}: has more than {MAX_DOCUMENTS} documents; split it, or name the jobs' file")
    return found


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """Splits the text at lines that begin with `---`; yields each piece with the number of lines before it."""
    begin = lines = 0
    for separator in re.finditer(r"^---([^\n]*)$", text, re.MULTILINE):
        piece = text[begin : separator.start()]
        yield lines, piece
        lines += piece.count("\n")
        begin = separator.end()
        # kubectl accepts only a comment after `---`.
        if separator[1].strip() and not separator[1].strip().startswith("#"):
            yield lines, separator[0]
    yield lines, text[begin:]


def _read(line: int, piece: str) -> Iterator[Document | None]:
    """Yields a piece's documents, and None for an empty one. `line` is the number of lines before the piece."""
    if piece.startswith("---"):
        message = "not YAML: kubectl reads nothing behind '---'; begin the document on the next line"
        yield _unreadable(line + 1, 1, message)
        return
    if piece.lstrip().startswith("%"):
        line += len(piece[: piece.index("%")].split("\n"))
        yield _unreadable(line, 1, "not YAML: kubectl reads no directives (%); remove the line")
        return
    objects = _json_objects(piece)
    if objects is None:
        yield _composed(piece, line, 0, is_json=False)
        return
    at = 0
    for begin, end in objects:
        line += piece.count("\n", at, begin)
        at = begin
        # Tabs may indent JSON but not YAML, so they are replaced. Strings in JSON can't contain tabs.
        text = piece[begin:end].replace("\t", " ")
        yield _composed(text, line, begin - piece.rfind("\n", 0, begin) - 1, is_json=True)


def _json_objects(piece: str) -> list[tuple[int, int]] | None:
    """Returns the start and end of each object in JSON, or None if the piece isn't JSON.

    As in kubectl, only a piece that begins with a brace can be JSON.
    """
    found = []
    decoder, at = json.JSONDecoder(parse_int=str), 0
    while (blanks := _BLANKS.match(piece, at)) is not None and (begin := blanks.end()) < len(piece):
        if piece[begin] != "{":
            return None
        try:
            _, at = decoder.raw_decode(piece, begin)
        except (ValueError, RecursionError):
            return None
        found.append((begin, at))
    return found or None


def _unreadable(line: int, column: int, message: str) -> Document:
    return Document(None, (Mistake(line, column, message),))


def _composed(text: str, line: int, column: int, *, is_json: bool) -> Document | None:
    """Returns the document in a text, or None if it is empty. `line` and `column` are the text's offset in the file."""

    def position(index: int) -> tuple[int, int]:
        before = text[:index]
        in_line = index - before.rfind("\n")
        return line + before.count("\n") + 1, in_line if "\n" in before else in_line + column

    try:
        loader = Loader(text)
        # This makes the marks of nodes and errors positions in the file.
        loader.line, loader.column = line, column
        node = loader.get_single_node()
        if node is None:
            return None
        reader = Reader(is_json)
        value = reader.value(node, "")
    except yaml.reader.ReaderError as error:
        message = f"not YAML: the character {chr(int(error.character))!r} can't stand there; remove it"
        return _unreadable(*position(error.position), message)
    except yaml.MarkedYAMLError as error:
        for lines, message in _FOREIGN_LINES:
            if (found := re.search(lines, text)) is not None:
                at = found.start() + len(found[0]) - len(found[0].lstrip())
                return _unreadable(*position(at), f"not YAML: {message}")
        mark, message = _syntax_message(error, text.split("\n"), line)
        return _unreadable(*place(mark), f"not YAML: {message}")
    except RecursionError:
        message = f"has too many lists and mappings in each other; use at most {MAX_NESTING}"
        return _unreadable(*position(len(text) - len(text.lstrip("\n"))), message)
    if value is None and not reader.mistakes:
        return None
    return Document(value, tuple(reader.mistakes), node, reader.fields)


# Patterns of PyYAML's messages, each with our message, into which the pattern's groups are inserted.
_MESSAGES = (
    (r"found character '\\t' that cannot start any token", "a tab can't indent; use spaces"),
    (r"found character '(.)' that cannot start any token", "a text can't begin with {0}; write it in quotes"),
    (r"mapping values are not allowed here", "a ':' follows where no field can begin; indent the line as its "
     "neighbours, or write a text that has ': ' in quotes"),
    (r"could not find expected ':'", "a line without ':' stands between fields; write a field, or indent the text"),
    (r"expected <block end>, but found '([\]}])'", "{0} closes nothing; remove it, or write the text in quotes"),
    (r"expected <block end>, but found '<scalar>'", "a text follows one in quotes; put all of it in quotes"),
    (r"expected <block end>, but found '(.*)'", "this line is indented as none above it; indent it as its neighbours"),
    (r"(?:block )?sequence entries are not allowed here", "'-' can't begin an item here; put it on a line of its own"),
    (r"found undefined alias '(.*)'",
     "'*{0}' names no anchor (&{0}) above it; write a text that begins with * in quotes"),
    (r"expected alphabetic or numeric character, but found .*", "a text can't begin with * or &; write it in quotes"),
    (r"found unknown escape character (.*)", "{0} is no escape in double quotes; write \\\\ for a backslash"),
    (r"expected a comment or a line break, but found .*", "a text behind '>' or '|' begins on the next line; move it"),
    (r"found unexpected end of stream", "the quotes that were opened are never closed; close them"),
    (r"expected the node content, but found '<stream end>'", "a bracket that was opened is never closed; close it"),
    (r"expected the node content, but found '(.*)'", "{0} stands where a value is expected; write a value"),
    (r"expected '<document start>', but found '<(?:scalar|block mapping start|block sequence start)>'|"
     r"but found another document", "kubectl reads nothing behind '...'; begin a document with '---'"),
    (r"expected ',' or '([\]}])', but got '<stream end>'",
     "a bracket that was opened is never closed; close it with {0}"),
    (r"expected ',' or '([\]}])', but got '(.*)'",
     "{1} can't follow there; close the brackets with {0}, or put a ',' between items"),
)  # fmt: skip


# Mistakes whose message contains this are shown at the opening character, not at the end of the file.
_NEVER_CLOSED = "never closed"
# Lines that can cause a YAML error in a later line.
_FOREIGN_LINES = (
    (r"(?m)^ *(<{7}|={7}|>{7})( .*)?$", "git's marks of a conflict are left in the file; resolve it"),
    (r"(?m)^```.*$", "a fence of Markdown is no YAML; remove the line"),
)
_TOKENS = {
    "<scalar>": "a text",
    "<block mapping start>": "a field",
    "<block sequence start>": "an item",
    "<stream end>": "the end of the file",
    "<anchor>": "an anchor",
    ",": "','",
    ":": "':'",
    "-": "'-'",
}


def _syntax_message(error: yaml.MarkedYAMLError, lines: list[str], first: int) -> tuple[yaml.Mark | None, str]:
    """Returns the position of a syntax error, and a message. `first` is the number of the first line in the file."""
    problem = " ".join(str(error.problem or error.context).split())
    mark = error.problem_mark or error.context_mark
    if mark is not None and "{{" in "".join(lines[mark.line - first : mark.line - first + 1]):
        return mark, TEMPLATE
    for pattern, message in _MESSAGES:
        found = re.fullmatch(pattern, problem)
        if found is not None:
            at = error.context_mark if _NEVER_CLOSED in message and error.context_mark is not None else mark
            return at, message.format(*(_TOKENS.get(each, each) for each in found.groups()))
    return mark, problem

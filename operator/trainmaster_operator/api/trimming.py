"""Decodes JSON of any size piece by piece, and keeps only the fields that a shape names.

Users decide how large an object is, and Python's objects take ten to thirty times the memory of their text. So only a
piece of the text and the kept fields are in memory. A small value is decoded at once and then pruned. In a larger
value, regular expressions skip unneeded fields without creating objects.

A shape is a mapping from kept fields to their shapes, `Each` for the items of a list, or `Whole`. Values that don't
match their shape are left out, and readers treat them as missing.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trainmaster_operator.api.json_codec import decode, is_larger

# Bytes of a piece of text. For this size, a regular expression blocks the interpreter for two milliseconds.
PIECE = 64 * 1024
# Maximum characters of a value that is decoded at once. A pod's JSON is about 10,000 characters long.
AT_ONCE = 16 * 1024
# The field in which an object lists its `marked` fields that were too large. No shape contains this field.
LEFT_OUT = "leftOut"


@dataclass(frozen=True)
class Whole:
    """Keeps a value unchanged, unless its JSON is longer than about `most` bytes.

    If `marked` is set and the value is left out, the object around it lists the field. `beyond` is the shape for larger
    values.
    """

    most: int = 4 * 1024
    marked: bool = False
    beyond: Shape | None = None


@dataclass(frozen=True)
class Each:
    """Keeps the first `most` items of a list, each trimmed by the shape.

    If `take` is set, it is called with each item as soon as the item is decoded, and no item is kept. Reading stops
    when `take` returns False.
    """

    item: Shape
    most: int = 1_000
    take: Callable[[Any], bool] | None = None


Shape = Whole | Each | Mapping[str, "Shape"]
# Markers for a value that is dropped completely, and for one that is too large to decode at once.
_NOTHING: Any = object()
_TOO_LARGE: Any = object()
# Maximum characters of a name in a shape.
_LONGEST_NAME = 1_000

_STRING = r'"(?:[^"\\]++|\\.)*+"'
_VALUES = rf'[^"\[\]{{}}]++|{_STRING}'
# Nested brackets up to this depth are skipped at once. Each level costs one more scan of an unclosed value.
for _level in range(3):
    _VALUES = rf'[^"\[\]{{}}]++|{_STRING}|[\[{{](?:{_VALUES})*+[\]}}]'
_BALANCED = re.compile(rf"(?:{_VALUES})*+", re.DOTALL)
_IN_STRING = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)
_BRACKETS = re.compile(r"[\[\]{}]*+")
_SCALAR = re.compile(r"[^\s,\]}]*+")
_BLANK = re.compile(r"[\s,]*+")
_decode_first = json.JSONDecoder().raw_decode


def prune(value: Any, shape: Shape) -> Any:
    """Returns the parts of a decoded document that `Trimmer` would keep."""
    kept = _prune(value, shape)
    return None if kept is _NOTHING or kept is _TOO_LARGE else kept


class Trimmer:
    """Trimmer decodes a sequence of documents, as in a watch, or a single one."""

    def __init__(self, shape: Shape) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text, self._at, self._ended = "", 0, False
        self._found: list[Any] = []
        self._work = self._documents(shape)
        next(self._work)

    def feed(self, piece: bytes) -> list[Any]:
        """Returns the documents that this piece completes. Documents that aren't JSON are replaced by a ValueError."""
        return self._resume(self._decoder.decode(piece))

    def end(self) -> list[Any]:
        """Returns the documents that the end of the text completes."""
        self._ended = True
        return self._resume(self._decoder.decode(b"", True))

    def _resume(self, more: str) -> list[Any]:
        self._text = self._text[self._at :] + more
        self._at = 0
        next(self._work, None)
        found, self._found = self._found, []
        return found

    # The following methods read at `_text[_at]` and yield to get more text. The text before `_at` is then dropped.

    def _documents(self, shape: Shape) -> Iterator[None]:
        while True:
            while self._is_at_end():
                if self._ended:
                    return
                yield
            try:
                value = yield from self._value(shape)
            except ValueError as error:
                self._found.append(error)
                yield from self._pass_line()
            else:
                self._found.append(None if value is _NOTHING or value is _TOO_LARGE else value)

    def _is_at_end(self) -> bool:
        """Skips blanks and returns whether no text is left."""
        self._at = _end(_BLANK, self._text, self._at)
        return self._at == len(self._text)

    def _next(self) -> Generator[None, None, str]:
        """Returns the next character that isn't blank."""
        while self._is_at_end():
            yield from self._more()
        return self._text[self._at]

    def _more(self) -> Iterator[None]:
        """Waits for more text. Raises ValueError if the text has ended."""
        if self._ended:
            raise ValueError("the text ends within a value")
        yield

    def _pass_line(self) -> Iterator[None]:
        while (end := self._text.find("\n", self._at)) < 0 and not self._ended:
            self._at = len(self._text)
            yield
        self._at = end + 1 if end >= 0 else len(self._text)

    def _value(self, shape: Shape) -> Generator[None, None, Any]:
        first = yield from self._next()
        if isinstance(shape, Whole):
            return (yield from self._whole(shape))
        if first != ("[" if isinstance(shape, Each) else "{"):
            yield from self._length(0)
            return _NOTHING
        if not _hands_on(shape):
            value = yield from self._at_once(shape)
            if value is not _TOO_LARGE:
                return value
        return (yield from self._items(shape) if isinstance(shape, Each) else self._object(shape))

    def _at_once(self, shape: Shape) -> Generator[None, None, Any]:
        """Decodes a small value. Returns _TOO_LARGE if the value is larger or if json refuses it."""
        wanted = 0
        while True:
            text = self._text[self._at : self._at + AT_ONCE]
            # A document ends with its line, and the next document may arrive hours later.
            if self._ended or len(text) >= wanted or "\n" in text:
                wanted = min(2 * len(text), AT_ONCE)
                try:
                    value, length = _decode_first(text)
                except json.JSONDecodeError:
                    if self._ended or len(text) == AT_ONCE:
                        return _TOO_LARGE
                except (ValueError, RecursionError):
                    return _TOO_LARGE
                else:
                    self._at += length
                    return _prune(value, shape, length)
            yield

    def _whole(self, shape: Whole) -> Generator[None, None, Any]:
        length = yield from self._length(shape.most, retain=shape.beyond is not None)
        if length is not None:
            value = decode(self._text[self._at : self._at + length])
            self._at += length
            return value
        if shape.beyond is not None:
            return _Marked((yield from self._value(shape.beyond)))
        return _TOO_LARGE

    def _object(self, shape: Mapping[str, Shape]) -> Generator[None, None, dict[str, Any]]:
        others = _others(frozenset(shape))
        kept: dict[str, Any] = {}
        self._at += 1
        while True:
            self._at = _end(others, self._text, self._at)
            first = yield from self._next()
            if first == "}":
                self._at += 1
                return kept
            if first != '"':
                raise ValueError(f"a name of a field is expected, not {first!r}")
            length = yield from self._length(_LONGEST_NAME)
            name = "" if length is None else json.loads(self._text[self._at : self._at + length])
            self._at += length or 0
            if (yield from self._next()) != ":":
                raise ValueError("a colon is expected after the name of a field")
            self._at += 1
            if length is None or name not in shape:
                yield from self._next()
                yield from self._length(0)
                continue
            _keep(kept, name, (yield from self._value(shape[name])), shape[name])

    def _items(self, shape: Each) -> Generator[None, None, list[Any]]:
        kept = _Items(shape)
        self._at += 1
        while (yield from self._next()) != "]":
            if not kept.more:
                yield from self._length(0, depth=1)
                return kept.items
            kept.add((yield from self._value(shape.item)))
        self._at += 1
        return kept.items

    def _length(self, most: int, *, depth: int = 0, retain: bool = False) -> Generator[None, None, int | None]:
        """Returns the length of the value at `_at`. If the value is longer than `most`, skips it and returns None.

        `depth` is the number of open brackets. `retain` prevents the skip. Raises ValueError if there is no value.
        """
        first = self._text[self._at] if depth == 0 else ""
        if first in ("]", "}"):
            raise ValueError(f"a value is expected, not {first!r}")
        in_string, is_scalar = first == '"', first not in '"[{'
        length = 0 if is_scalar else len(first)
        depth += first in ("[", "{")
        too_long = most == 0
        while True:
            end = _end(_SCALAR if is_scalar else _IN_STRING if in_string else _BALANCED, self._text, self._at + length)
            char = self._text[end : end + 1]
            # In a string, this may be a backslash whose escaped character hasn't arrived yet.
            needs_more = not char or (in_string and char != '"')
            if is_scalar:
                needs_more &= not self._ended
            elif not needs_more:
                end, depth = (end + 1, depth) if char == '"' else _passed(self._text, end, depth)
                in_string = not in_string and char == '"'
            length = end - self._at
            if length > most and retain:
                return None
            too_long |= length > most
            if too_long:
                self._at, length = end, 0
            if not needs_more and (is_scalar or (depth == 0 and not in_string)):
                return None if too_long else length
            if needs_more:
                yield from self._more()


def _hands_on(shape: Shape) -> bool:
    """Returns whether a list of this shape, or a list in an object of this shape, passes its items to `take`."""
    if isinstance(shape, Each):
        return shape.take is not None
    return isinstance(shape, Mapping) and any(isinstance(each, Each) and each.take for each in shape.values())


class _Marked:
    def __init__(self, value: Any) -> None:
        self.value = value


class _Items:
    """_Items contains the kept items of a list. `more` is set while further items are accepted."""

    def __init__(self, shape: Each) -> None:
        self.items: list[Any] = []
        self.more = shape.most > 0
        self._left, self._take = shape.most, shape.take

    def add(self, value: Any) -> None:
        if value is _NOTHING or value is _TOO_LARGE:
            return
        self._left -= 1
        self.more = self._left > 0
        if self._take is None:
            self.items.append(value)
        else:
            self.more &= self._take(value)


def _keep(kept: dict[str, Any], name: str, value: Any, shape: Shape) -> None:
    if value is _TOO_LARGE or isinstance(value, _Marked):
        if isinstance(shape, Whole) and shape.marked:
            kept.setdefault(LEFT_OUT, []).append(name)
        value = value.value if isinstance(value, _Marked) else _NOTHING
    if value is not _NOTHING:
        kept[name] = value


def _prune(value: Any, shape: Shape, length: int | None = None) -> Any:
    """Returns the kept part of a decoded value. `length` is the length of its text, if known."""
    if isinstance(shape, Whole):
        if (length is not None and length <= shape.most) or not is_larger(value, shape.most):
            return value
        return _TOO_LARGE if shape.beyond is None else _Marked(_prune(value, shape.beyond, length))
    if isinstance(shape, Each):
        if not isinstance(value, list):
            return _NOTHING
        kept = _Items(shape)
        for item in value:
            if not kept.more:
                break
            kept.add(_prune(item, shape.item, length))
        return kept.items
    if not isinstance(value, dict):
        return _NOTHING
    found: dict[str, Any] = {}
    for name, inner in shape.items():
        if name in value:
            _keep(found, name, _prune(value[name], inner, length), inner)
    return found


def _passed(text: str, at: int, depth: int) -> tuple[int, int]:
    """Skips consecutive brackets until the outermost bracket is closed. Returns the position and the depth."""
    run = text[at : _end(_BRACKETS, text, at)]
    closing = run.count("]") + run.count("}")
    if closing < depth:
        return at + len(run), depth + len(run) - 2 * closing
    for place, bracket in enumerate(run, at + 1):
        depth += 1 if bracket in "[{" else -1
        if depth == 0:
            return place, 0
    return at + len(run), depth


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Returns the end of a match, or `at` if the pattern doesn't match."""
    found = pattern.match(text, at)
    return at if found is None else found.end()


@cache
def _others(names: frozenset[str]) -> re.Pattern[str]:
    """Returns a pattern that skips the fields of an object up to the next field with one of these names."""
    ours = "|".join(map(re.escape, sorted(names)))
    # A number must be followed by a delimiter. A name with a backslash isn't skipped, because it may be an escaped form
    # of these.
    value = rf'{_STRING}|[^\s"\[\]{{}},:]++(?=[\s,}}\]])|[\[{{](?:{_VALUES})*+[\]}}]'
    return re.compile(rf'(?:[\s,]*+(?!"(?:{ours})")"[^"\\]*+"\s*+:\s*+(?:{value}))*+', re.DOTALL)

"""`Picker` reads JSON piece by piece and keeps only what a shape names.

Anybody may write objects of 1.5 MB, and their JSON becomes thirty times as much in Python. Here the rest of an object
is passed over while it comes: neither its text nor its values are ever in memory. A slice is read at a time, so that
other work gets its turn in between, and no depth matters, because nothing here calls itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from trainmaster.api.decoding import decode

_STRING = rb'"(?:[^"\\]++|\\.)*+'
_TOKEN = re.compile(_STRING + rb'(?P<end>"?)(?P<colon>\s*+(?::|\Z))?|[\[\]{}]', re.DOTALL)
_REST_OF_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+(?P<end>"?)', re.DOTALL)
# Lists and objects within each other that are passed over at once, where they are whole.
_LEVELS = 5
# A name, and the beginning of a string that is kept for the next piece; a longer one is no name that a shape has.
_MOST_NAME = 300
_MOST_TAIL = 8_192
# Bytes of memory that an object, and a value within a leaf, takes beside its text.
_OBJECT_BYTES, _VALUE_BYTES = 300, 80


def _nested() -> bytes:
    whole = rb'[\[{](?:[^"\[\]{}]++|' + _STRING + rb'")*+[\]}]'
    for _ in range(_LEVELS):
        whole = rb'[\[{](?:[^"\[\]{}]++|' + _STRING + rb'"|' + whole + rb")*+[\]}]"
    return whole


# Values that are whole, and brackets of lists and objects that aren't, or are too deep.
_WHOLE_VALUES = re.compile(rb'(?:[^"\[\]{}]++|' + _STRING + rb'"|' + _nested() + rb")*+", re.DOTALL)
_BRACKETS = re.compile(rb"[\[{]++|[\]}]++")


@dataclass(frozen=True)
class Each:
    """Each is the shape of a list of objects; the first `most` of them are kept."""

    shape: Mapping[str, Shape]
    most: int


# A whole value of at most so many bytes; the named fields of an object; a list of objects. Other values are left out.
Shape: TypeAlias = "int | Mapping[str, Shape] | Each"


class _Frame:
    """_Frame is an object or a list that is being read, of which something is kept."""

    __slots__ = ("depth", "kept", "shape")

    def __init__(self, shape: Mapping[str, Shape] | Each, depth: int) -> None:
        self.shape, self.depth = shape, depth
        self.kept: Any = [] if isinstance(shape, Each) else {}


class Picker:
    """Picker reads one object. `found` is what is kept of it so far, and `weight` about how many bytes that takes."""

    def __init__(self, shape: Mapping[str, Shape], most_weight: float = float("inf")) -> None:
        """Beyond `most_weight` no more objects of lists are kept: `is_cut` says so."""
        self.weight = 0
        self.is_cut = False
        # Whether a leaf was larger than its shape lets it be.
        self.has_too_large = False
        self._most_weight = most_weight
        self._shape = shape
        self._frames: list[_Frame] = []
        self._root: dict[str, Any] = {}
        self._depth = 0
        self._tail = b""
        self._in_string = False
        # The object has come to its end.
        self.is_whole = False
        # What the value behind the last name is to become.
        self._name = ""
        self._wanted: Shape | None = None
        # The text of a leaf, and its limit; None while none is read.
        self._leaf: bytearray | None = None
        self._leaf_limit = 0

    @property
    def found(self) -> dict[str, Any]:
        """Returns what is kept so far."""
        return self._root

    def take(self, name: str) -> list[dict[str, Any]]:
        """Returns the objects of a list in the outermost object that are whole, and keeps them no longer."""
        known = self._root.get(name)
        if not isinstance(known, list):
            return []
        is_open = len(self._frames) > 2 and self._frames[1].kept is known
        whole = known[: len(known) - is_open]
        del known[: len(whole)]
        self.weight = 0
        return whole

    def feed(self, piece: bytes) -> bytes | None:
        """Reads on; returns what stands behind the object when it is whole, else None.

        Raises ValueError for what is no object.
        """
        if self.is_whole:
            return piece
        data = self._tail + piece
        self._tail = b""
        place = leaf_from = 0
        if self._in_string:
            rest = _REST_OF_STRING.match(data)
            assert rest is not None
            place = rest.end()
            if not rest["end"]:
                self._grow(data, 0, place)
                self._tail = data[place:]
                return None
            self._in_string = False
        while True:
            if self._frames and self._depth > self._frames[-1].depth:
                place = self._pass_over(data, place)
                if self._depth > self._frames[-1].depth and (place == len(data) or data[place] != 0x22):
                    break
            token = _TOKEN.search(data, place)
            if token is None:
                place = len(data)
                break
            place = token.end()
            first = data[token.start()]
            if first == 0x22:
                if not token["end"] or place == len(data):
                    place = token.start()
                    if len(data) - place <= _MOST_TAIL:
                        break
                    # It may end just here, and then it isn't a name.
                    rest = _REST_OF_STRING.match(data, place + 1)
                    assert rest is not None
                    place, self._in_string = rest.end(), not rest["end"]
                    if self._in_string:
                        break
                elif token["colon"] and self._frames and self._depth == self._frames[-1].depth:
                    self._end_leaf(data, leaf_from, token.start())
                    self._begin_value(data[token.start() : token.start("end") + 1])
                    leaf_from = place
            elif first in b"{[":
                if not self._open(first):
                    self._depth += 1
            elif self._close(data, leaf_from, token.start()):
                self.is_whole = True
                return data[place:]
        self._grow(data, leaf_from, place)
        self._tail = data[place:]
        return None

    def _pass_over(self, data: bytes, place: int) -> int:
        """Reads to the end of a value of which nothing is kept, or of the data; returns where that is."""
        keep = self._frames[-1].depth
        while self._depth > keep:
            values = _WHOLE_VALUES.match(data, place)
            assert values is not None
            place = values.end()
            brackets = _BRACKETS.match(data, place)
            if brackets is None:
                return place
            count = brackets.end() - place
            if data[place] in b"[{":
                # The last few of them may be values that are whole.
                count = max(1, count - _LEVELS)
                self._depth += count
            else:
                count = min(count, self._depth - keep)
                self._depth -= count
            place += count
        return place

    def _begin_value(self, raw_name: bytes) -> None:
        """Decides what becomes of the value behind a name."""
        self._wanted = None
        shape = self._frames[-1].shape
        if len(raw_name) > _MOST_NAME or isinstance(shape, Each):
            return
        name = decode(raw_name) if b"\\" in raw_name else raw_name[1:-1].decode("utf-8", "replace")
        wanted = shape.get(name)
        if wanted is None:
            return
        self._name, self._wanted = name, wanted
        if isinstance(wanted, int):
            self._leaf, self._leaf_limit = bytearray(), wanted

    def _open(self, bracket: int) -> bool:
        """Begins an object or a list of which something is kept; returns whether it is one."""
        if not self._frames:
            if bracket != 0x7B:
                raise ValueError("is no object")
            self._push(_Frame(self._shape, 1))
            self._root = self._frames[0].kept
            return True
        top = self._frames[-1]
        if self._depth != top.depth or self._leaf is not None:
            return False
        if isinstance(top.shape, Each):
            if bracket != 0x7B or len(top.kept) >= top.shape.most:
                return False
            if self.weight > self._most_weight:
                self.is_cut = True
                return False
            self._push(_Frame(top.shape.shape, self._depth + 1))
            top.kept.append(self._frames[-1].kept)
            return True
        wanted = self._wanted
        if isinstance(wanted, int) or wanted is None or (bracket == 0x5B) != isinstance(wanted, Each):
            return False
        self._push(_Frame(wanted, self._depth + 1))
        top.kept[self._name] = self._frames[-1].kept
        self._wanted = None
        return True

    def _push(self, frame: _Frame) -> None:
        self._frames.append(frame)
        self._depth += 1
        self.weight += _OBJECT_BYTES

    def _close(self, data: bytes, leaf_from: int, end: int) -> bool:
        """Ends an object or a list; returns whether it was the outermost."""
        if not self._frames:
            raise ValueError("is no object")
        if self._depth == self._frames[-1].depth:
            self._end_leaf(data, leaf_from, end)
            self._wanted = None
            self._frames.pop()
        self._depth -= 1
        return self._depth == 0

    def _grow(self, data: bytes, start: int, end: int) -> None:
        """Keeps the text of a leaf that goes on in the next piece."""
        if self._leaf is not None and len(self._leaf) <= self._leaf_limit:
            self._leaf += data[start : min(end, start + self._leaf_limit + 1)]

    def _end_leaf(self, data: bytes, start: int, end: int) -> None:
        if self._leaf is None:
            return
        self._grow(data, start, end)
        # A leaf that came whole may have the comma behind it.
        raw, self._leaf = bytes(self._leaf).strip(b" \t\r\n,"), None
        if len(raw) > self._leaf_limit:
            self.has_too_large = True
            return
        try:
            self._frames[-1].kept[self._name] = decode(raw)
        except ValueError:
            return
        self.weight += len(raw) + _VALUE_BYTES * (1 + sum(map(raw.count, (b",", b"[", b"{"))))

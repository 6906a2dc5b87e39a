"""Curves are a job's figures over time, one of each for all ranks together."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trainmaster.history.packing import (
    NAN,
    compress,
    decompress,
    floats_from_bytes,
    floats_to_bytes,
    wholes_from_bytes,
    wholes_to_bytes,
)
from trainmaster.history.thinning import Combine, combined, last, mean, spans
from trainmaster_operator.api.v1alpha1 import TIME_CATEGORIES

# Before the names of status.timeSpent.
SPENT = "timeSpent."
# In the order in which a block has them (a block names its order: `layout`). A spike of the norm and the slowest rank
# are what is looked for, so of several the largest stays.
FIGURES: Mapping[str, Combine] = {
    "loss": mean,
    "learningRate": last,
    "gradNorm": max,
    "samplesPerSecond": mean,
    "stepSeconds": mean,
    "slowestStepSeconds": max,
    "goodput": last,
    **{f"{SPENT}{category}": last for category in TIME_CATEGORIES},
}
# A step that isn't known.
NO_STEP = -1
_HEAD = struct.Struct("<I")


@dataclass
class Curves:
    """Curves are points by time: `at` in seconds, the attempt, the step (NO_STEP: unknown), and figures (NaN)."""

    at: list[float] = field(default_factory=list)
    attempt: list[int] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    figures: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in FIGURES})

    def __len__(self) -> int:
        return len(self.at)

    def extend(self, later: Curves) -> None:
        """Adds points that are later."""
        self.at += later.at
        self.attempt += later.attempt
        self.step += later.step
        for name, values in self.figures.items():
            values += later.figures.get(name) or [NAN] * len(later)

    def between(self, since: float, until: float) -> Curves:
        """Returns the points of a time."""
        return self.part(bisect_left(self.at, since), bisect_right(self.at, until))

    def part(self, first: int, end: int) -> Curves:
        """Returns the points from `first` to before `end`."""
        figures = {name: values[first:end] for name, values in self.figures.items()}
        return Curves(self.at[first:end], self.attempt[first:end], self.step[first:end], figures)

    def thinned(self, seconds: float) -> Curves:
        """Returns a point for each span of so many seconds, and attempt; its time is that of the last of its points."""
        return self.combined(spans(self.at, self.attempt, seconds))

    def combined(self, together: Sequence[tuple[int, int]]) -> Curves:
        """Returns one point for each of these spans of points (the first, and the one behind the last)."""
        if len(together) == len(self):
            return self
        return Curves(
            [self.at[end - 1] for _, end in together],
            [self.attempt[end - 1] for _, end in together],
            [max(self.step[first:end]) for first, end in together],
            {
                name: [combined(FIGURES[name], values[first:end]) for first, end in together]
                for name, values in self.figures.items()
            },
        )

    def to_block(self) -> bytes:
        """Returns the points as bytes."""
        parts = [wholes_to_bytes([round(time * 1000) for time in self.at])]
        parts += [wholes_to_bytes(self.attempt), wholes_to_bytes(self.step)]
        parts += [floats_to_bytes(self.figures[name]) for name in FIGURES]
        return compress(_HEAD.pack(len(self)) + b"".join(parts))

    @classmethod
    def of_block(cls, block: bytes, layout: Sequence[str]) -> Curves:
        """Returns a block's points; `layout` names its figures, of which some may be another release's."""
        raw = decompress(block)
        (count,) = _HEAD.unpack_from(raw)
        if len(raw) != _HEAD.size + count * (3 * 8 + len(layout) * 4):
            raise ValueError(f"a block of {count} points can't be read: it has {len(raw)} bytes")
        place = _HEAD.size

        def part(width: int) -> bytes:
            nonlocal place
            place += count * width
            return raw[place - count * width : place]

        at, attempt, step = (wholes_from_bytes(part(8)) for _ in range(3))
        found = {name: part(4) for name in layout}
        unknown = [NAN] * count
        figures = {name: floats_from_bytes(found[name]) if name in found else unknown[:] for name in FIGURES}
        return cls([time / 1000 for time in at], attempt, step, figures)


def joined(blocks: Iterable[Curves]) -> Curves:
    """Returns the points of several, which follow each other."""
    found = Curves()
    for block in blocks:
        found.extend(block)
    return found

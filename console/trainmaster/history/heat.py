"""Heat is the figures of each rank over time, which a heat map draws: it shows who is slower than the others.

A peak stays: of several times a rank's slowest step and largest norm are kept. The mean step time is kept beside, in
which a rank that is always a little slower is seen, where each has been slow once.
"""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trainmaster.history.packing import (
    NAN,
    compress,
    decompress,
    halves_from_bytes,
    halves_to_bytes,
    wholes_from_bytes,
    wholes_to_bytes,
)
from trainmaster.history.thinning import BLOCK_POINTS, KEPT_POINTS, Combine, combined, mean, spans

PEAK, MEAN = "stepSeconds", "meanStepSeconds"
FIGURES: Mapping[str, Combine] = {PEAK: max, MEAN: mean, "gradNorm": max, "loss": mean}
# Of a sample; the operator sends no more of one job.
MAX_RANKS = 16_384
# Figures of ranks that a level keeps, and a block has; a heat map has 240 columns at most.
_KEPT_CELLS, _LEAST_POINTS, _BLOCK_CELLS = 100_000, 480, 100_000
# Figures of a name that are put together at once. A job's pods choose the numbers of its ranks, and may choose others
# at each time.
MOST_CELLS = 1_000_000
_HEAD = struct.Struct("<II")


def kept_points(ranks: int) -> int:
    """Returns the points that a level keeps of a job with so many ranks."""
    return max(_LEAST_POINTS, min(KEPT_POINTS, _KEPT_CELLS // max(ranks, 1)))


def block_points(ranks: int) -> int:
    """Returns the points that one block has."""
    return max(1, min(BLOCK_POINTS, _BLOCK_CELLS // max(ranks, 1)))


@dataclass
class Heat:
    """Heat has for each time, and within it each rank, the figures; NaN where one is unknown.

    `figures` are flat: the figure of the rank at `place`, `n` times after the first, is at `n * len(ranks) + place`.
    At the finest level there is no mean beside the peak, as they are one.
    """

    ranks: list[int]
    workers: list[int]
    at: list[float] = field(default_factory=list)
    attempt: list[int] = field(default_factory=list)
    figures: dict[str, array[float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.at)

    def rows(self, figure: str) -> list[array[float]]:
        """Returns a figure's values by time, one for each rank."""
        width = len(self.ranks)
        values = self.figures.get(PEAK if figure == MEAN and MEAN not in self.figures else figure)
        if values is None:
            return [array("d", [NAN]) * width for _ in self.at]
        return [values[place : place + width] for place in range(0, len(values), width)]

    def thinned(self, seconds: float, *, with_mean: bool = False) -> Heat:
        """Returns the figures of each span of so many seconds, and attempt; `with_mean` has MEAN beside PEAK."""
        together = spans(self.at, self.attempt, seconds)
        if len(together) == len(self):
            return self
        found = Heat(
            self.ranks,
            self.workers,
            [self.at[end - 1] for _, end in together],
            [self.attempt[end - 1] for _, end in together],
        )
        for figure in FIGURES:
            if figure in self.figures or (with_mean and figure == MEAN and PEAK in self.figures):
                rows = self.rows(figure)
                found.figures[figure] = array(
                    "d",
                    (value for first, end in together for value in _combined_rows(FIGURES[figure], rows[first:end])),
                )
        return found

    def cut(self, points: int) -> list[Heat]:
        """Returns the same in parts with so many points each."""
        return [self.part(first, min(first + points, len(self))) for first in range(0, len(self), points)]

    def part(self, first: int, end: int) -> Heat:
        """Returns the times from `first` to before `end`."""
        width = len(self.ranks)
        figures = {name: values[first * width : end * width] for name, values in self.figures.items()}
        return Heat(self.ranks, self.workers, self.at[first:end], self.attempt[first:end], figures)

    def to_block(self) -> bytes:
        """Returns it as bytes."""
        names = json.dumps([self.ranks, self.workers, list(self.figures)], separators=(",", ":")).encode()
        parts = [names, wholes_to_bytes([round(time * 1000) for time in self.at]), wholes_to_bytes(self.attempt)]
        parts += [halves_to_bytes(values) for values in self.figures.values()]
        return compress(_HEAD.pack(len(names), len(self)) + b"".join(parts))

    @classmethod
    def of_block(cls, block: bytes, figure: str | None = None) -> Heat:
        """Returns a block's figures, or only one of them, by its own name."""
        raw = decompress(block)
        length, count = _HEAD.unpack_from(raw)
        place = _HEAD.size + length
        ranks, workers, names = json.loads(raw[_HEAD.size : place])
        width = 2 + 2 * count * len(ranks)
        if len(raw) != place + 16 * count + width * len(names):
            raise ValueError(f"a block of {count} times and {len(ranks)} ranks can't be read: it has {len(raw)} bytes")
        at, attempt = (wholes_from_bytes(raw[place + part * 8 * count :][: 8 * count]) for part in (0, 1))
        place += 16 * count
        stored = PEAK if figure == MEAN and MEAN not in names else figure
        figures = {
            name if figure is None else figure: halves_from_bytes(raw[place + number * width :][:width])
            for number, name in enumerate(names)
            if stored in (None, name)
        }
        return cls(ranks, workers, [time / 1000 for time in at], attempt, figures)


def times_of_block(block: bytes) -> tuple[list[float], list[int]]:
    """Returns a block's times and attempts; its figures, of which there are many more, stay packed."""
    unpacking = zlib.decompressobj()
    try:
        length, count = _HEAD.unpack(unpacking.decompress(block, _HEAD.size))
        raw = unpacking.decompress(unpacking.unconsumed_tail, length + 16 * count)[length:]
    except zlib.error as error:
        raise ValueError(f"a block can't be read: {error}") from error
    if len(raw) != 16 * count:
        raise ValueError(f"a block of {count} times can't be read: it is too short")
    at, attempt = wholes_from_bytes(raw[: 8 * count]), wholes_from_bytes(raw[8 * count :])
    return [time / 1000 for time in at], attempt


def joined(parts: Iterable[Heat]) -> Heat:
    """Returns parts that follow each other as one, with the ranks that any of them has; a rank's last worker counts.

    Of more figures than MOST_CELLS the first ranks' are left.
    """
    parts = list(parts)
    worker_of = {rank: worker for part in parts for rank, worker in zip(part.ranks, part.workers, strict=True)}
    ranks = sorted(worker_of)[: max(1, MOST_CELLS // max(1, sum(map(len, parts))))]
    found = Heat(ranks, [worker_of[rank] for rank in ranks])
    names = [name for name in FIGURES if any(name in part.figures for part in parts)]
    found.figures = {name: array("d") for name in names}
    for part in parts:
        found.at += part.at
        found.attempt += part.attempt
        fit = _fitting(part.ranks, ranks)
        for name in names:
            for row in part.rows(name):
                found.figures[name].extend(fit(row))
    return found


def _fitting(own: Sequence[int], ranks: Sequence[int]) -> Callable[[array[float]], Iterable[float]]:
    if list(own) == ranks:
        return lambda row: row
    place_of = {rank: place for place, rank in enumerate(own)}
    places = [place_of.get(rank, len(own)) for rank in ranks]

    def fit(row: array[float]) -> list[float]:
        wider = [*row, NAN]
        return [wider[place] for place in places]

    return fit


def _combined_rows(how: Combine, rows: Sequence[array[float]]) -> Iterable[float]:
    if len(rows) == 1:
        return rows[0]
    if all(total == total for total in map(sum, rows)):
        # Nothing is unknown, which is the rule, and takes a fifth of the time.
        if how is max:
            return map(max, *rows)
        return [total / len(rows) for total in map(sum, zip(*rows, strict=True))]
    return [combined(how, values) for values in zip(*rows, strict=True)]

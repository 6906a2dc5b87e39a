"""Encodes a job's figures over time.

There are four kinds: curves (one value for all ranks together), heat (a value for each rank), system (a value for each
worker) and gpus (a value for each GPU).

The newest samples are in the file's `tail` as JSON, in the order of arrival. Later `upkeep` packs many of them into a
block, because a block has a fixed cost.

Points are thinned by levels as they age, as in RRDtool and Whisper. Each point is in one level only. Samples enter
level 0 unchanged. If a level has too many points, its oldest points are combined and moved to the next level. So a job
of one hour keeps every sample. A job of months keeps every sample of the last hour, a point for every 10 seconds of
the hours before, and so on, and the number of points is bounded. Combining takes the mean of fluctuating figures, the
maximum of figures whose peak matters, and the last value of counters. A point never mixes two attempts.

Plain rows would take 9 times as many bytes with 4 ranks, and 35 times with 1,024 (bench/RESULTS.md).
"""

from __future__ import annotations

import json
import logging
import math
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import itemgetter
from statistics import fmean, median
from typing import Any, TypeVar

from trainmaster_operator.api.records import FIGURES as RECORDED
from trainmaster_operator.api.records import SampleRecord, SystemRecord
from trainmaster_operator.api.v1alpha1 import TIME_CATEGORIES
from trainmaster_operator.wire.limits import MAX_GPUS
from trainmaster_operator.wire.values import MAX_WHOLE

log = logging.getLogger(__name__)
Combine = Callable[[Sequence[float]], float]
Block = TypeVar("Block")
Read = TypeVar("Read")

NAN = math.nan
CURVES, HEAT, SYSTEM, GPUS = "curves", "heat", "system", "gpus"
# The slowest step of a rank reveals that the rank was slow once. The mean step reveals that it is always a little slow.
STEP, PEAK, MEAN = "step", "stepSeconds", "meanStepSeconds"
# The ranks of points that are summarized: below any worker's, with the minimum, the mean and the maximum.
STATISTICS = [-3, -2, -1]
# The prefix of figures that come from status.timeSpent.
SPENT = "timeSpent."
# The prefix of the ranks' own metrics among the curves.
OWN = "metrics."
# Seconds of a point in each level. The last level's 1,800 points cover six and a half years.
LEVEL_SECONDS = (0.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 28_800.0, 115_200.0)
# Maximum number of ranks in a sample. The operator sends at most this many for a job.
MAX_RANKS = 16_384
# Maximum of a block: points, and values if there are many ranks. Maximum of a level: points and values, but at least
# the last number of points, because a heat map has at most 240 columns.
_BLOCK_POINTS, _BLOCK_CELLS, _KEPT_POINTS, _KEPT_CELLS, _LEAST_POINTS = 60, 100_000, 1800, 100_000, 480
# Maximum values of a figure that are joined at once. It is limited because a job's pods choose the ranks' numbers, and
# may choose different ones each time.
MOST_CELLS = 1_000_000
# Maximum bytes of a block's head, in which ranks and workers are numbers of five digits.
_HEAD_BYTES = 1_000_000
# Low bits of a float32 that are dropped for heat. The 11 significant bits that are kept are more than a colour shows.
_DROPPED_BITS = 13
# The compressor's dictionary: text that blocks have in common. It must never change, because old blocks need it.
_COMMON = (
    b'{"at":[2000,2000,2000,10000,60000],"attempt":[1,1,1,1],"ranks":[0,1,2,3],"workers":[0,0,1,1],"figures":["step",'
    b'"loss","learningRate","gradNorm","samplesPerSecond","stepSeconds","slowestStepSeconds","goodput",'
    b'"timeSpent.productive","timeSpent.recompute","timeSpent.data","timeSpent.checkpoint","timeSpent.load",'
    b'"timeSpent.rendezvous","timeSpent.schedule","timeSpent.restart","timeSpent.stall","stepSeconds","meanStepSeconds",'
    b'"gradNorm","loss"]}\n'
)


last: Combine = itemgetter(-1)

RULES: Mapping[str, Mapping[str, Combine]] = {
    CURVES: {
        STEP: max,
        "loss": fmean,
        "learningRate": last,
        "gradNorm": max,
        "samplesPerSecond": fmean,
        "stepSeconds": fmean,
        "slowestStepSeconds": max,
        "goodput": last,
        **{f"{SPENT}{category}": last for category in TIME_CATEGORIES},
    },
    HEAT: {PEAK: max, MEAN: fmean, "gradNorm": max, "loss": fmean},
    SYSTEM: {
        "cpuCores": fmean,
        "cpuLimitCores": last,
        "memoryBytes": max,
        "memoryLimitBytes": last,
        "networkReceiveBytesPerSecond": fmean,
        "networkTransmitBytesPerSecond": fmean,
    },
    GPUS: {"gpuUtilization": fmean, "gpuMemoryBytes": max, "gpuMemoryLimitBytes": last},
}
HEAT_FIGURES = tuple(RULES[HEAT])
# Maps names in a record to the figures of ranks that are kept.
_OF_RANKS = {name: key for name, key in RECORDED.items() if key in HEAT_FIGURES}
# Figures of a job besides its step: the column of a record, and the function that reduces its known values to one.
_OF_JOB: Mapping[str, tuple[str, Combine]] = {
    "loss": ("loss", itemgetter(0)),
    "learningRate": ("learning_rate", itemgetter(0)),
    "gradNorm": ("grad_norm", max),
    "samplesPerSecond": ("samples_per_second", sum),
    "stepSeconds": ("step_seconds", median),
    "slowestStepSeconds": ("step_seconds", max),
}


def rules_of(kind: str, names: Iterable[str]) -> dict[str, Combine]:
    """Returns how those of a kind's figures that are in `names` are combined, in order."""
    known = set(names)
    found = {name: how for name, how in RULES[kind].items() if name in known}
    return found | {name: fmean for name in sorted(known) if name.startswith(OWN)}


def kept_points(ranks: int) -> int:
    """Returns the number of points that a level keeps for a job with `ranks` ranks."""
    return max(_LEAST_POINTS, min(_KEPT_POINTS, _KEPT_CELLS // max(ranks, 1)))


def block_points(ranks: int) -> int:
    """Returns the number of points in a block."""
    return max(1, min(_BLOCK_POINTS, _BLOCK_CELLS // max(ranks, 1)))


def spans(at: Sequence[float], attempt: Sequence[int], seconds: float) -> list[tuple[int, int]]:
    """Returns the start and end of each span: successive points of one attempt in one period of `seconds`."""
    keys = [(time // seconds if seconds else time, of) for time, of in zip(at, attempt, strict=True)]
    begins = [place for place, key in enumerate(keys) if not place or key != keys[place - 1]]
    return list(pairwise([*begins, len(keys)]))


@dataclass
class Points:
    """Points are values, ordered by time (seconds since the epoch) and then by rank. Unknown values are NaN.

    In a system's points, a rank is a worker. In those of GPUs, it is a worker's index times MAX_GPUS plus the GPU's.

    The lists in `values` are flat: at the n-th time (from 0), the value of the rank at `place` has the index
    `n * len(ranks) + place`. Curves have one rank. Heat has no mean step until points are combined, because until then
    the mean equals the peak.
    """

    kind: str
    ranks: list[int] = field(default_factory=lambda: [0])
    workers: list[int] = field(default_factory=lambda: [0])
    at: list[float] = field(default_factory=list)
    attempt: list[int] = field(default_factory=list)
    values: dict[str, array[float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.at)

    def rows(self, figure: str) -> list[array[float]]:
        """Returns a figure's rows. There is one row for each time, with one value for each rank."""
        width = len(self.ranks)
        values = self.values.get(PEAK if figure == MEAN and MEAN not in self.values else figure)
        if values is None:
            return [array("d", [NAN]) * width for _ in self.at]
        return [values[place : place + width] for place in range(0, len(values), width)]

    def between(self, since: float, until: float) -> Points:
        """Returns the points between two times."""
        return self.part(bisect_left(self.at, since), bisect_right(self.at, until))

    def part(self, first: int, end: int) -> Points:
        """Returns the points from `first` to before `end`."""
        width = len(self.ranks)
        values = {name: values[first * width : end * width] for name, values in self.values.items()}
        return Points(self.kind, self.ranks, self.workers, self.at[first:end], self.attempt[first:end], values)

    def thinned(self, seconds: float) -> Points:
        """Combines one attempt's points in each period of `seconds` into one point with the last one's time."""
        return self.combined(spans(self.at, self.attempt, seconds))

    def combined(self, together: Sequence[tuple[int, int]]) -> Points:
        """Combines each span of points into one point."""
        if len(together) == len(self):
            return self
        times = [self.at[end - 1] for _, end in together], [self.attempt[end - 1] for _, end in together]
        found = Points(self.kind, self.ranks, self.workers, *times)
        for name, how in rules_of(self.kind, {*self.values, MEAN} if PEAK in self.values else self.values).items():
            if len(self.ranks) == 1 and name in self.values:
                values = self.values[name]
                found.values[name] = array("d", [_combined(how, values[first:end]) for first, end in together])
            elif name in self.values or (name == MEAN and PEAK in self.values):
                rows = self.rows(name)
                row_of = (value for first, end in together for value in _combined_rows(how, rows[first:end]))
                found.values[name] = array("d", row_of)
        return found

    def summarized(self) -> Points:
        """Returns the minimum, the mean and the maximum of all ranks' known values (STATISTICS)."""
        found = Points(self.kind, STATISTICS, STATISTICS, self.at, self.attempt)
        for name in self.values:
            values = array("d")
            for row in self.rows(name):
                total, known = sum(row), row
                if total != total:
                    known = array("d", [value for value in row if value == value])
                    total = sum(known)
                values.extend((min(known), total / len(known), max(known)) if known else (NAN, NAN, NAN))
            found.values[name] = values
        return found

    def to_block(self) -> bytes:
        """Returns the points as bytes: a line of JSON, then each figure's values.

        Bytes of the same significance are grouped (as in Parquet's BYTE_STREAM_SPLIT), because only exponents compress
        well. The groups of exponents and of dropped bits then take almost no space.
        """
        times = [round(time * 1000) for time in self.at]
        head = {
            "at": [now - before for before, now in pairwise([0, *times])],
            "attempt": self.attempt,
            "ranks": self.ranks,
            "workers": self.workers,
            "figures": list(self.values),
        }
        parts = [json.dumps(head, separators=(",", ":")).encode(), b"\n"]
        for name, values in self.values.items():
            stored: array[Any] = array("f", values)
            if name == STEP:
                # Floats represent steps exactly up to 2**53.
                steps = [int(step) if step == step else -1 for step in values]
                stored = array("q", [now - before for before, now in pairwise([0, *steps])])
            if self.kind != CURVES:
                half, mask = 1 << (_DROPPED_BITS - 1), 0xFFFFFFFF << _DROPPED_BITS & 0xFFFFFFFF
                stored = array("f", array("I", [bits + half & mask for bits in array("I", stored.tobytes())]).tobytes())
            raw, width = stored.tobytes(), stored.itemsize
            parts += [raw[place::width] for place in range(width)]
        packing = zlib.compressobj(6, zdict=_COMMON)
        return packing.compress(b"".join(parts)) + packing.flush()

    @classmethod
    def of_block(cls, kind: str, block: bytes, figure: str | None = None) -> Points:
        """Returns a block's points with all figures or one of them. Raises ValueError for an unreadable block."""
        head, at, raw = _unpacked(block)
        names, found = head["figures"], cls(kind, head["ranks"], head["workers"], at, head["attempt"])
        wanted = PEAK if figure == MEAN and MEAN not in names else figure
        place, cells = 0, len(at) * len(found.ranks)
        for name in names:
            values = array("q" if name == STEP else "f")
            end = place + cells * values.itemsize
            if wanted in (None, name) and end <= len(raw):
                joined = bytearray(end - place)
                for byte in range(values.itemsize):
                    joined[byte :: values.itemsize] = raw[place + byte * cells : place + (byte + 1) * cells]
                values.frombytes(joined)
                found.values[name] = array("d", values)
                if name == STEP:
                    found.values[name] = array("d", [NAN if step < 0 else step for step in accumulate(values)])
            place = end
        if place != len(raw):
            raise ValueError(f"a block of {len(at)} times and {len(found.ranks)} ranks has {len(raw)} bytes")
        return found


def times_of_block(block: bytes) -> tuple[list[float], list[int]]:
    """Returns a block's times and attempts without unpacking its values, which are far more numerous."""
    head, at, _ = _unpacked(block, _HEAD_BYTES)
    return at, head["attempt"]


def joined(kind: str, parts: Iterable[Points]) -> Points:
    """Joins consecutive parts. The result contains the ranks of all parts, and each rank's last worker.

    If a figure would have more values than MOST_CELLS, only the lowest ranks are kept.
    """
    parts = list(parts)
    worker_of = {rank: worker for part in parts for rank, worker in zip(part.ranks, part.workers, strict=True)}
    ranks = sorted(worker_of)[: max(1, MOST_CELLS // max(1, sum(map(len, parts))))]
    found = Points(kind, ranks, [worker_of[rank] for rank in ranks])
    found.values = {name: array("d") for name in rules_of(kind, {name for part in parts for name in part.values})}
    for part in parts:
        found.at += part.at
        found.attempt += part.attempt
        fit = _fitting(part.ranks, ranks)
        for name, values in found.values.items():
            if part.ranks == ranks and name in part.values:
                values.extend(part.values[name])
                continue
            for row in part.rows(name):
                values.extend(fit(row))
    return found


def readable(read: Callable[[Block], Read], blocks: Iterable[Block]) -> Iterator[Read]:
    """Yields the result of `read` for each block. Blocks that can't be read are logged and skipped."""
    for block in blocks:
        try:
            found = read(block)
        except (ValueError, KeyError, TypeError) as error:
            log.warning("Some of a job's figures are skipped: %s", error)
        else:
            yield found


def decompress(packed: bytes) -> bytes:
    """Returns the original bytes. Raises ValueError for bytes that zlib didn't compress."""
    try:
        return zlib.decompress(packed)
    except zlib.error as error:
        raise ValueError(f"a block can't be read: {error}") from error


def step_of(record: SampleRecord) -> int | None:
    """Returns the step of the first rank that reports a step."""
    found = next((value for value in record.columns.get("step") or () if value is not None), None)
    return None if found is None else int(min(max(found, 0.0), MAX_WHOLE - 1))


def figures_of(record: SampleRecord) -> list[str]:
    """Returns the names of a sample's curves, without those of its ranks' own metrics."""
    known = {name for name, values in record.columns.items() if values.count(None) < len(values)}
    return [key for key, (name, _) in _OF_JOB.items() if name in known]


def to_tail(record: SampleRecord, status: Mapping[str, float], most_ranks: int = MAX_RANKS) -> str:
    """Returns a sample as text for the tail. `status` contains the figures of the job's status at that time."""
    known = {name: [value for value in values if value is not None] for name, values in record.columns.items()}
    of_job: dict[str, float | None] = {STEP: step_of(record)}
    of_job |= {key: how(known[name]) for key, (name, how) in _OF_JOB.items() if known.get(name)}
    ranks, workers = record.ranks[:most_ranks], record.workers[:most_ranks]
    of_ranks = {
        key: record.columns[name][:most_ranks] for name, key in _OF_RANKS.items() if known.get(name) and record.ranks
    }
    figures = {name: value for name, value in of_job.items() if value is not None}
    figures |= {f"{OWN}{name}": value for name, value in record.metrics.items()}
    return json.dumps([record.attempt, {**figures, **status}, ranks, workers, of_ranks], separators=(",", ":"))


def system_to_tail(record: SystemRecord, most: int = MAX_RANKS) -> str:
    """Returns a sample of workers' systems as text for the tail, with at most `most` workers and GPUs."""
    columns = {name: values[:most] for name, values in record.columns.items()}
    return json.dumps([record.attempt, None, record.workers[:most], record.gpus[:most], columns], separators=(",", ":"))


def of_tail(rows: Iterable[tuple[float, str]]) -> dict[str, list[Points]]:
    """Returns the figures of a tail's rows (time and text) by kind. If the ranks change, a new part begins."""
    found: dict[str, list[Points]] = {kind: [] for kind in RULES}
    for at, text in rows:
        attempt, figures, ranks, workers, of_ranks = json.loads(text)
        if figures is None:
            _append_system(found, (at, attempt), ranks, workers, of_ranks)
            continue
        names = (*RULES[CURVES], *(name for name in figures if name.startswith(OWN)))
        _append(found[CURVES], CURVES, (at, attempt), [0], [0], {name: [figures.get(name)] for name in names})
        if of_ranks:
            _append(found[HEAT], HEAT, (at, attempt), ranks, workers, of_ranks)
    return found


def _append_system(
    parts: Mapping[str, list[Points]],
    time: tuple[float, int],
    workers: list[int],
    gpus: list[list[int]],
    columns: Mapping[str, Sequence[float | None]],
) -> None:
    of_workers, of_gpus = ({name: columns[name] for name in rules_of(kind, columns)} for kind in (SYSTEM, GPUS))
    if of_workers:
        _append(parts[SYSTEM], SYSTEM, time, workers, workers, of_workers)
    if of_gpus:
        numbers = [worker * MAX_GPUS + index for worker, index in gpus]
        _append(parts[GPUS], GPUS, time, numbers, [worker for worker, _ in gpus], of_gpus)


def _append(
    parts: list[Points],
    kind: str,
    time: tuple[float, int],
    ranks: list[int],
    workers: list[int],
    columns: Mapping[str, Sequence[float | None]],
) -> None:
    """Adds a sample to the last part, or to a new part if the ranks, workers or figures have changed."""
    part = parts[-1] if parts else None
    if part is None or (part.ranks, part.workers, part.values.keys()) != (ranks, workers, columns.keys()):
        in_order = {name: array("d") for name in rules_of(kind, columns)}
        parts.append(part := Points(kind, ranks, workers, values=in_order))
    part.at.append(time[0])
    part.attempt.append(time[1])
    for name, values in part.values.items():
        values.extend(NAN if value is None else value for value in columns[name])


def _unpacked(block: bytes, most: int = 0) -> tuple[dict[str, Any], list[float], bytes]:
    """Returns a block's head, times and rest. If `most` isn't 0, unpacks at most that many bytes. Raises ValueError."""
    try:
        line, _, rest = zlib.decompressobj(zdict=_COMMON).decompress(block, most).partition(b"\n")
        head = json.loads(line)
    except (zlib.error, json.JSONDecodeError) as error:
        raise ValueError(f"a block can't be read: {error}") from error
    at = [time / 1000 for time in accumulate(head["at"])]
    if len(head["attempt"]) != len(at) or len(head["workers"]) != len(head["ranks"]):
        raise ValueError(f"a block's head has {len(at)} times and {len(head['attempt'])} attempts")
    return head, at, rest


def _fitting(own: Sequence[int], ranks: Sequence[int]) -> Callable[[array[float]], Iterable[float]]:
    """Returns a function that puts a row of the ranks `own` in the order of `ranks`."""
    if list(own) == ranks:
        return lambda row: row
    place_of = {rank: place for place, rank in enumerate(own)}
    places = [place_of.get(rank, -1) for rank in ranks]
    # The index -1 selects the NaN at the end.
    return lambda row: map([*row, NAN].__getitem__, places)


def _combined_rows(how: Combine, rows: Sequence[array[float]]) -> Iterable[float]:
    if len(rows) == 1:
        return rows[0]
    if how is not last and all(total == total for total in map(sum, rows)):
        # All values are known: the usual case, which this computes in a fifth of the time.
        return map(max, *rows) if how is max else [total / len(rows) for total in map(sum, zip(*rows, strict=True))]
    return [_combined(how, values) for values in zip(*rows, strict=True)]


def _combined(how: Combine, values: Sequence[float]) -> float:
    """Combines several values into one, ignoring unknown values."""
    found = how(values)
    # max() ignores NaN unless NaN is the first value.
    if found == found:
        return found
    known = [value for value in values if value == value]
    return how(known) if known else NAN

"""A job's curves are drawn as lines of blocks, each over the whole time from its first point to its last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Any

from rich.text import Text

from trainmaster.cli.top_picture import BLOCKS, step_time

# Into a pipe, and at most: beyond that a line isn't read at a glance.
PIPE_WIDTH, MOST_WIDTH, LEAST_WIDTH = 100, 160, 8
LABEL_WIDTH = 15
# A curve that varies by less than this share of its value is drawn as a flat line, and not as noise.
FLAT = 0.005
# Without a point for so many times the usual distance of two, nothing was reported.
GAP = 3.0


def _plain(value: float) -> str:
    return f"{value:.4g}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


_CURVES: Mapping[str, tuple[str, Callable[[float], str], str]] = {
    "loss": ("loss", _plain, "cyan"),
    "samplesPerSecond": ("samples/s", _rate, "green"),
    "gradNorm": ("gradient norm", _plain, "magenta"),
    "stepSeconds": ("step, median", step_time, "blue"),
    "slowestStepSeconds": ("step, slowest", step_time, "yellow"),
}


def curve_lines(series: Mapping[str, Any], width: int | None) -> Iterator[Text]:
    """Yields a checked series as lines of at most `width` columns; nothing where less than two points are known."""
    times: list[float] = series["at"]
    if len(times) < 2 or times[-1] == times[0]:
        return
    known = {name: [value for value in series[name] if value is not None] for name in _CURVES}
    drawn = [name for name, values in known.items() if values]
    if not drawn:
        return
    figures = {}
    for name in drawn:
        words, values = _CURVES[name][1], known[name]
        figures[name] = f"{words(values[-1])}  ({words(min(values))} to {words(max(values))})"
    # One scale for both, so that a rank that is slower than the others is seen between them.
    steps = [value for name in ("stepSeconds", "slowestStepSeconds") for value in known[name]]
    beside = max(map(len, figures.values()))
    room = max(LEAST_WIDTH, min(width or PIPE_WIDTH, MOST_WIDTH) - LABEL_WIDTH - 2 - beside)
    for name in drawn:
        label, _, style = _CURVES[name]
        means = spread(times, series[name], room)
        scale = steps if name.endswith("tepSeconds") else [value for value in means if value is not None]
        line = Text(label.ljust(LABEL_WIDTH), no_wrap=True, overflow="crop")
        yield line.append(blocks(means, min(scale), max(scale)), style).append(f"  {figures[name]}")
    starts = "".join(_starts(times, series["attempt"], room)).rstrip()
    if starts:
        yield Text("attempt".ljust(LABEL_WIDTH) + starts, "dim", no_wrap=True, overflow="crop")
    begin, end = (f"{datetime.fromtimestamp(at, UTC):%m-%d %H:%M}" for at in (times[0], times[-1]))
    axis = begin + end.rjust(room - len(begin)) if room >= len(begin + end) + 2 else begin
    yield Text("time (UTC)".ljust(LABEL_WIDTH) + axis, "dim", no_wrap=True, overflow="crop")


def spread(times: Sequence[float], values: Sequence[float | None], columns: int) -> list[float | None]:
    """Returns the mean of the values in each of some equal stretches of time; None for one without any.

    Where points are further apart than the stretches, each counts until the next; what is longer without any is a gap.
    """
    sums, counts = [0.0] * columns, [0] * columns
    for at, value in zip(times, values, strict=True):
        if value is not None:
            column = _column(times, at, columns)
            sums[column] += value
            counts[column] += 1
    means = [total / count if count else None for total, count in zip(sums, counts, strict=True)]
    usual = median(later - at for at, later in pairwise(times))
    longest = int(GAP * usual / (times[-1] - times[0]) * columns)
    known = [column for column, mean in enumerate(means) if mean is not None]
    for column, later in pairwise(known):
        if later - column - 1 <= longest:
            means[column:later] = [means[column]] * (later - column)
    return means


def blocks(values: Sequence[float | None], least: float, most: float) -> str:
    """Returns values as blocks on a scale from `least` to `most`; a blank for None."""
    is_flat = most - least <= FLAT * max(abs(least), abs(most))
    scale = 0.0 if is_flat else (len(BLOCKS) - 1) / (most - least)
    return "".join(" " if value is None else BLOCKS[round(scale * (value - least))] for value in values)


def _starts(times: Sequence[float], attempts: Sequence[int | None], columns: int) -> list[str]:
    """Returns each attempt's number where it begins; of numbers that would overlap the later ones are left out."""
    line = [" "] * columns
    seen, free = 0, 0
    for at, attempt in zip(times, attempts, strict=True):
        if attempt is None or attempt <= seen:
            continue
        seen = attempt
        column, number = _column(times, at, columns), str(attempt)
        if free <= column <= columns - len(number):
            line[column : column + len(number)] = number
            free = column + len(number) + 1
    return line


def _column(times: Sequence[float], at: float, columns: int) -> int:
    return min(columns - 1, int((at - times[0]) / (times[-1] - times[0]) * columns))

"""The report's pictures show a run's curves and a heat map of the ranks' step times; drawing needs matplotlib.

A dashed line marks a new attempt; the single-rank run for comparison is grey.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from statistics import median
from typing import Any

Lines = list[dict[str, Any]]

ALONE: dict[str, Any] = {"color": "0.55", "zorder": 1.5}
# From MANY evaluations on, the curve is drawn without marks. A loss that falls by more than the factor STEEP is drawn
# on a log scale.
MANY, STEEP = 40, 2.5
# The minimum height of the axes, because small differences are noise and shouldn't fill a plot.
LEAST_SHARE_AXIS, LEAST_RESULT_SPAN = 10.0, 0.1
# The fraction of the heat map's times that the scale covers, so that one interrupted step doesn't dominate the map.
BRIGHTEST = 0.98


def curve(lines: Lines, kind: str, name: str) -> tuple[list[int], list[Any]]:
    """Returns the steps and values of one number. If a restart repeated a step, the last value is used."""
    points = {line["step"]: line[name] for line in lines if line["kind"] == kind and line.get(name) is not None}
    return sorted(points), [points[step] for step in sorted(points)]


def draw_curves(lines: Lines, directory: Path, alone: Lines | None = None) -> Path:
    """Draws a panel for each number of a step, one for evaluations, and one for checkpoints."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(4, 2, figsize=(12, 13), constrained_layout=True)
    draws = [_loss, _results, _rate, _norm, _throughput, _step_time, _shares, _stalls]
    last = max([1, *(line["step"] for line in [*lines, *(alone or [])] if "step" in line)])
    for axis, draw in zip(axes.flat, draws, strict=True):
        draw(axis, lines, alone or [])
        if axis.get_ylim()[0] == 0:
            # Room for the legend above the curves.
            axis.set_ylim(0, axis.get_ylim()[1] * (1 + 0.08 * len(axis.get_legend_handles_labels()[1])))
        if not axis.lines and not axis.collections:
            axis.text(0.5, 0.5, "nothing was written", ha="center", va="center", color="0.5", transform=axis.transAxes)
            axis.set_yticks([])
        axis.set(xlabel="optimizer step", xlim=(0, 1.03 * last))
        axis.locator_params(axis="x", integer=True)
        axis.grid(alpha=0.3)
        for number, step in enumerate(restarts(lines)):
            label = "_" if number or draw is not _loss else "new attempt"
            axis.axvline(step, color="0.4", linestyle="--", linewidth=0.8, label=label)
        names = axis.get_legend_handles_labels()[1]
        if len(names) > 1 or (names and draw in (_results, _shares)):
            axis.legend(fontsize="small")
    return _save(figure, directory / "curves.png")


def draw_ranks(lines: Lines, directory: Path) -> Path:
    """Draws each rank's computing time without its waits for other ranks; a slow rank appears as a bright row."""
    from matplotlib import pyplot

    steps, seconds = curve(lines, "step", "rankComputeSeconds")
    ranks = max(map(len, seconds))
    grid = [[1000 * row[rank] if rank < len(row) else float("nan") for row in seconds] for rank in range(ranks)]
    figure, axis = pyplot.subplots(figsize=(12, 1.9 + 0.3 * min(ranks, 24)), constrained_layout=True)
    # The first line is excluded, because its steps also warm up.
    times = sorted(value for row in grid for value in row[1:] or row if value == value)
    # The scale starts at zero, so that ranks that differ by a few percent have similar colours.
    brightest = times[int(BRIGHTEST * (len(times) - 1))]
    colours = pyplot.get_cmap("viridis").with_extremes(bad="0.85", over="#fff3a0")
    image = axis.imshow(grid, aspect="auto", interpolation="nearest", cmap=colours, vmin=0.0, vmax=brightest)
    columns = range(0, len(steps), max(1, len(steps) // 12))
    axis.set(
        title="Computing time of each rank, without waiting for the others", xlabel="optimizer step", ylabel="rank"
    )
    axis.set_xticks(list(columns), [str(steps[column]) for column in columns])
    axis.set_yticks(range(0, ranks, max(1, ranks // 16)))
    for step in set(restarts(lines)) & set(steps):
        axis.axvline(steps.index(step) - 0.5, color="#d62728", linestyle="--", linewidth=1.5)
    figure.colorbar(image, label="ms a step", extend="max")
    return _save(figure, directory / "ranks.png")


def restarts(lines: Lines) -> list[int]:
    """Returns the first step that the curves show of each attempt, except the first attempt."""
    shown = {line["step"]: line["attempt"] for line in lines if line["kind"] == "step"}
    steps = sorted(shown)
    return [later for earlier, later in itertools.pairwise(steps) if shown[later] != shown[earlier]]


def _loss(axis: Any, lines: Lines, alone: Lines) -> None:
    _line(axis, alone, "step", "loss", label="training, one rank", **ALONE)
    _line(axis, alone, "evaluation", "loss", label="evaluation, one rank", linestyle=":", **ALONE)
    _line(axis, lines, "step", "loss", label="training")
    _line(axis, lines, "evaluation", "loss", label="evaluation")
    axis.set(title="Loss", ylabel="mean over samples or tokens")
    values = [value for drawn in axis.lines for value in drawn.get_ydata()]
    if values and min(values) > 0 and max(values) > STEEP * min(values):
        # Otherwise the first steps' fall would fill the plot.
        axis.set(yscale="log", ylabel="mean over samples or tokens, log scale")
        for ticks in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
            ticks("{x:.3g}")


def _results(axis: Any, lines: Lines, alone: Lines) -> None:
    """Draws all results between 0 and 1 (accuracy, F1) together or, if there are none, the first other result."""
    newest = next((line for line in reversed(lines) if line["kind"] == "evaluation"), {})
    names = [name for name in newest if name not in ("kind", "attempt", "time", "step", "loss")]
    shares = [name for name in names if all(0 <= value <= 1 for value in curve(lines, "evaluation", name)[1])]
    drawn = shares or names[:1]
    for name in drawn:
        for run, label, style in ((alone, f"{name}, one rank", {"linestyle": ":", **ALONE}), (lines, name, {})):
            values = curve(run, "evaluation", name)[1]
            _line(
                axis, run, "evaluation", name, label=f"{label}: {values[-1]:.4g} at the end" if values else "", **style
            )
    axis.set(title="Evaluation" + (f": {', '.join(drawn)}" if drawn else ""), ylabel=" / ".join(drawn))
    if shares:
        low, high = axis.get_ylim()
        more = max(0.0, LEAST_RESULT_SPAN - (high - low)) / 2
        axis.set_ylim(max(-0.02, low - more), min(1.02, high + more))


def _rate(axis: Any, lines: Lines, alone: Lines) -> None:
    _line(axis, lines, "step", "lr")
    axis.set(title="Learning rate", ylabel="lr", ylim=(0, None))
    axis.ticklabel_format(axis="y", scilimits=(-2, 3))


def _norm(axis: Any, lines: Lines, alone: Lines) -> None:
    _line(axis, lines, "step", "gradNorm", label="norm")
    limit = next((line.get("maxNorm") for line in reversed(lines) if line.get("event") == "started"), None)
    if limit:
        axis.axhline(limit, color="C3", linestyle=":", linewidth=1.2, label=f"clipped to {limit:g}")
    axis.set(title="Gradient norm before clipping", ylabel="L2 norm over all parameters", ylim=(0, None))


def _throughput(axis: Any, lines: Lines, alone: Lines) -> None:
    _line(axis, alone, "step", "samplesPerSecond", label="one rank", **ALONE)
    _line(axis, lines, "step", "samplesPerSecond", label="all ranks together")
    one, ranks = curve(alone, "step", "samplesPerSecond")[1], curve(lines, "step", "rankComputeSeconds")[1]
    if one and ranks:
        times = len(ranks[-1])
        axis.axhline(times * median(one), label=f"{times} times one rank's median", linestyle=":", **ALONE)
    axis.set(title="Throughput, evaluations and checkpoints included", ylabel="samples/s", ylim=(0, None))


def _step_time(axis: Any, lines: Lines, alone: Lines) -> None:
    _line(axis, alone, "step", "stepSeconds", 1000.0, label="one rank", **ALONE)
    _line(axis, lines, "step", "stepSeconds", 1000.0, label="wall clock")
    steps, ranks = curve(lines, "step", "rankComputeSeconds")
    if steps:
        slowest = [1000.0 * max(row) for row in ranks]
        axis.plot(steps, slowest, linewidth=1.0, color="C2", label="forward and backward, slowest rank")
    axis.set(title="Time of a step", ylabel="ms", ylim=(0, None))


def _shares(axis: Any, lines: Lines, alone: Lines) -> None:
    _line(axis, lines, "step", "dataWait", 100.0, label="waiting for data")
    if any(curve(lines, "step", "communication")[1]):
        _line(axis, lines, "step", "communication", 100.0, label="communication not hidden by computing")
    highest = max((max(drawn.get_ydata()) for drawn in axis.lines), default=0.0)
    axis.set(title="Time that isn't computing", ylabel="% of wall time, mean of the ranks")
    axis.set_ylim(0, max(LEAST_SHARE_AXIS, 1.1 * highest))


def _stalls(axis: Any, lines: Lines, alone: Lines) -> None:
    steps, seconds = curve(lines, "checkpoint", "stallSeconds")
    axis.set(title="Standing still for a checkpoint", ylabel="ms")
    if steps:
        axis.vlines(steps, 0, [1000 * value for value in seconds], linewidth=3, color="C0")
        axis.set_ylim(bottom=0)


def _line(axis: Any, lines: Lines, kind: str, name: str, factor: float = 1.0, **style: Any) -> None:
    steps, values = curve(lines, kind, name)
    if steps:
        marker = "o" if kind == "evaluation" and len(steps) < MANY else None
        axis.plot(steps, [factor * value for value in values], linewidth=1.2, marker=marker, markersize=4, **style)


def _save(figure: Any, picture: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(picture, dpi=110)
    pyplot.close(figure)
    return picture

"""The report's pictures: curves of a run, and a heat map of the ranks' step times. Needs matplotlib.

A dashed line stands where a new attempt begins, a grey curve is the run of one rank that is compared with.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

Lines = list[dict[str, Any]]

#: Numbers of a step: name in the metrics file, title, factor. Drawn from zero, but for the first.
STEP_PANELS = [
    ("loss", "loss", 1.0),
    ("lr", "learning rate", 1.0),
    ("gradNorm", "gradient norm before clipping", 1.0),
    ("samplesPerSecond", "samples a second", 1.0),
    ("dataWait", "waiting for data, % of the time", 100.0),
    ("communication", "communication that nothing hides, % of the time", 100.0),
]
#: With these the one-rank run is drawn too.
COMPARED = ("loss", "samplesPerSecond")
MANY = 40


def curve(lines: Lines, kind: str, name: str) -> tuple[list[int], list[Any]]:
    """Steps and values of one number. A step that was computed twice (after a restart) counts as the last time."""
    points = {line["step"]: line[name] for line in lines if line["kind"] == kind and line.get(name) is not None}
    return sorted(points), [points[step] for step in sorted(points)]


def draw_curves(lines: Lines, directory: Path, alone: Lines | None = None) -> Path:
    """One panel for each number of a step, one for evaluations, one for checkpoints."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(4, 2, figsize=(11, 12), constrained_layout=True)
    loss, evaluations, *others, stalls = axes.flat
    for axis, (name, title, factor) in zip([loss, *others], STEP_PANELS, strict=True):
        if alone and name in COMPARED:
            _line(axis, alone, "step", name, factor, color="0.6", label="one rank")
        _line(axis, lines, "step", name, factor, label="training")
        axis.set_title(title)
        if name != "loss":
            axis.set_ylim(bottom=0)
        if alone and name in COMPARED:
            axis.legend()
    _line(loss, lines, "evaluation", "loss", label="evaluation")
    if loss.lines:
        loss.legend()
    _draw_evaluations(evaluations, lines)
    _draw_stalls(stalls, lines)
    last = max([1, *(line["step"] for line in [*lines, *(alone or [])] if "step" in line)])
    for axis in axes.flat:
        axis.set(xlabel="step", xlim=(0, 1.03 * last))
        axis.grid(alpha=0.3)
        for step in restarts(lines):
            axis.axvline(step, color="0.4", linestyle="--", linewidth=0.8)
    return _save(figure, directory / "curves.png")


def draw_ranks(lines: Lines, directory: Path) -> Path:
    """Each rank's own computing time, without waiting for others: a slow rank is a bright row."""
    from matplotlib import pyplot

    steps, seconds = curve(lines, "step", "rankComputeSeconds")
    ranks = max(map(len, seconds))
    grid = [[1000 * row[rank] if rank < len(row) else float("nan") for row in seconds] for rank in range(ranks)]
    figure, axis = pyplot.subplots(figsize=(11, 1.7 + 0.3 * min(ranks, 24)), constrained_layout=True)
    # Without the first line, whose steps also warm up; it would take up the whole scale.
    shades = [value for row in grid for value in row[1:] if value == value] or [0.0]
    image = axis.imshow(grid, aspect="auto", interpolation="nearest", vmin=min(shades), vmax=max(shades))
    columns = range(0, len(steps), max(1, len(steps) // 8))
    axis.set(title="computing time of each rank", xlabel="step", ylabel="rank")
    axis.set_xticks(list(columns), [str(steps[column]) for column in columns])
    axis.set_yticks(range(0, ranks, max(1, ranks // 16)))
    for step in set(restarts(lines)) & set(steps):
        axis.axvline(steps.index(step) - 0.5, color="white", linestyle="--", linewidth=1)
    figure.colorbar(image, label="ms a step")
    return _save(figure, directory / "ranks.png")


def restarts(lines: Lines) -> list[int]:
    """The first step that each attempt but the first wrote down, of those that the curves show."""
    shown = {line["step"]: line["attempt"] for line in lines if line["kind"] == "step"}
    steps = sorted(shown)
    return [later for earlier, later in itertools.pairwise(steps) if shown[later] != shown[earlier]]


def _line(axis: Any, lines: Lines, kind: str, name: str, factor: float = 1.0, **style: Any) -> None:
    steps, values = curve(lines, kind, name)
    if steps:
        marker = "o" if kind == "evaluation" and len(steps) < MANY else None
        axis.plot(steps, [factor * value for value in values], linewidth=1.2, marker=marker, markersize=4, **style)


def _draw_evaluations(axis: Any, lines: Lines) -> None:
    """Results that are shares (accuracy, F1) together; where there are none, the first of the others."""
    newest = next((line for line in reversed(lines) if line["kind"] == "evaluation"), {})
    names = [name for name in newest if name not in ("kind", "attempt", "time", "step", "loss")]
    shares = [name for name in names if all(0 <= value <= 1 for value in curve(lines, "evaluation", name)[1])]
    drawn = shares or names[:1]
    for name in drawn:
        _line(axis, lines, "evaluation", name, label=name)
    axis.set_title(f"evaluation: {', '.join(drawn)}" if drawn else "evaluation: none")
    if shares:
        axis.set_ylim(0, 1.02)
    if len(drawn) > 1:
        axis.legend()


def _draw_stalls(axis: Any, lines: Lines) -> None:
    steps, seconds = curve(lines, "checkpoint", "stallSeconds")
    axis.set_title("standing still for a checkpoint, ms" if steps else "checkpoints: none")
    if steps:
        axis.vlines(steps, 0, [1000 * value for value in seconds], linewidth=3, color="C0")
        axis.set_ylim(bottom=0)


def _save(figure: Any, picture: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(picture, dpi=110)
    pyplot.close(figure)
    return picture

"""Draws a table of recorded jobs, and one job's page with its attempts, failures, time and curves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from trainmaster.cli.console import columns
from trainmaster.cli.show import PHASE_STYLES, where_time_went
from trainmaster.cli.terminal import called, wrapped
from trainmaster.cli.top import blocks, step_time
from trainmaster.client import ClientError, TrainingJob
from trainmaster.client.view import FailureView, duration, figure, percent, rate, steps_text
from trainmaster_operator.api.printable import one_line
from trainmaster_operator.api.times import to_datetime
from trainmaster_operator.wire.values import is_number, mapping, text

DELETED = " (deleted)"
STYLES = {**PHASE_STYLES, **{f"{phase}{DELETED}": style for phase, style in PHASE_STYLES.items()}}
OUTCOME_STYLES = {"Succeeded": "green", "Failed": "red", "Disrupted": "yellow", "Running": "cyan"}
# Only the newest attempts are shown; -o json prints all.
MOST_ATTEMPTS = 20
# In columns: the width of a line in a pipe, the maximum width of a line (a longer one can't be read at a glance), and
# the minimum width of a curve.
PIPE_WIDTH, MOST_WIDTH, LEAST_WIDTH = 100, 160, 8
LABEL_WIDTH = 15
# If two points are this many times the usual distance apart, there were no reports between them.
GAP = 3.0


def job_table(
    jobs: Sequence[Mapping[str, Any]], now: datetime | None = None, *, namespaces: bool = False, wide: bool = False
) -> Text:
    now = now or datetime.now(UTC)
    names = ["NAME", "PHASE", "ATTEMPTS", "RESTARTS", "STEP", "LOSS", "GOODPUT", "STARTED", "DURATION"]
    names = [*(["NAMESPACE"] if namespaces else []), *names, *(["UID", "LAST FAILURE"] if wide else [])]
    return columns([_cells(job, now) for job in jobs], names, {"PHASE": STYLES})


def _cells(job: Mapping[str, Any], now: datetime) -> dict[str, str]:
    started = to_datetime(job["startedAt"])
    return {
        "NAMESPACE": job["namespace"],
        "NAME": job["name"],
        "PHASE": _phase(job),
        "ATTEMPTS": "" if job["attempt"] is None else str(job["attempt"]),
        "RESTARTS": "" if job["restarts"] is None else str(job["restarts"]),
        "STEP": steps_text(job["step"], job["totalSteps"]),
        "LOSS": figure(job["loss"]),
        "GOODPUT": percent(job["goodput"]),
        "STARTED": "" if started is None else f"{duration((now - started).total_seconds())} ago",
        "DURATION": _ran_for(job, job, now),
        "UID": job["uid"],
        "LAST FAILURE": _failure_line(job["lastFailure"]),
    }


def _phase(job: Mapping[str, Any]) -> str:
    return f"{job['phase'] or 'Pending'}{DELETED if job['deletedAt'] else ''}"


def _ran_for(part: Mapping[str, Any], job: Mapping[str, Any], now: datetime) -> str:
    """Returns how long a job or an attempt has run so far or in total. Before the start, the text is empty."""
    begin, end = to_datetime(part["startedAt"]), to_datetime(part["endedAt"] or job["endedAt"] or job["deletedAt"])
    return "" if begin is None else duration(((end or now) - begin).total_seconds())


def _failure_line(failure: Mapping[str, Any] | None) -> str:
    """Formats a failure in one line: `Error: ValueError: lost, at train.py:41; rank 5 ended with exit code 1`."""
    if failure is None:
        return ""
    reason, line = text(failure.get("reason")) or "unknown", FailureView(failure).last_line
    return reason if line == reason else f"{reason}: {line}"


def job_page(
    job: Mapping[str, Any], series: Mapping[str, Any], width: int | None, now: datetime | None = None
) -> Iterator[RenderableType]:
    """Yields a job's page from a validated RecordedJobDetail and Series, in lines of at most `width` columns."""
    now = now or datetime.now(UTC)
    yield _headline(job, now)
    yield from _facts(job, width, now)
    for part in (_attempts(job, width, now), _time(job, now), curve_lines(series, width)):
        if lines := list(part):
            yield from (Text(), *lines)
    failed = [each["attempt"] for each in job["attempts"] if each["failure"] is not None]
    if failed:
        life = f" --uid {job['uid']}" if len(job["lives"]) > 1 else ""
        words = f"history {job['name']} -n {job['namespace']}{life} --attempt {failed[-1]}"
        yield Text(one_line(f"more: {called()} {words}"), "dim")


def _headline(job: Mapping[str, Any], now: datetime) -> Text:
    phase = _phase(job)
    line = Text.assemble((one_line(job["name"]), "bold"), "  ", (one_line(phase), STYLES.get(phase, "")))
    for name in ("attempt", "restarts", "disruptions"):
        if job[name] is not None and (job[name] or name != "disruptions"):
            line.append(f"  {name} {job[name]}")
    ran = _ran_for(job, job, now)
    return line.append(f"  time {ran}" if ran else "")


def _facts(job: Mapping[str, Any], width: int | None, now: datetime) -> Iterator[Text]:
    known = {
        "step": steps_text(job["step"], job["totalSteps"]),
        "loss": figure(job["loss"]),
        "goodput": percent(job["goodput"]),
        **{name: figure(value) for name, value in mapping(job["result"]).items() if is_number(value)},
    }
    if progress := "  ".join(f"{name} {shown}" for name, shown in known.items() if shown):
        yield from _lines(progress, width)
    life = [f"namespace {job['namespace']}", f"uid {job['uid']}"]
    for name in ("created", "deleted"):
        at = to_datetime(job[f"{name}At"])
        if at is not None:
            life.append(f"{name} {_moment(at)} ({duration((now - at).total_seconds())} ago)")
    yield from _lines("  ".join(life), width, "dim")
    for other in job["lives"]:
        if other["uid"] != job["uid"]:
            created = to_datetime(other["createdAt"])
            when = f", created {_moment(created)}" if created is not None else ""
            yield from _lines(f"another job of this name{when}: --uid {other['uid']}", width, "dim")


def _attempts(job: Mapping[str, Any], width: int | None, now: datetime) -> Iterator[Text]:
    """Yields a table of the attempts, if there are any, with a sentence below each failed one."""
    if not job["attempts"]:
        return
    shown = job["attempts"][-MOST_ATTEMPTS:]
    rows = []
    for attempt in shown:
        started = to_datetime(attempt["startedAt"])
        first, last = attempt["firstStep"], attempt["lastStep"]
        row = {
            "ATTEMPT": str(attempt["attempt"]),
            "STARTED (UTC)": "" if started is None else _moment(started),
            "RAN FOR": _ran_for(attempt, job, now),
            "STEPS": "" if first is None or last is None else f"{first} to {last}",
            "OUTCOME": attempt["outcome"] or "",
        }
        rows.append(row)
    heading, *lines = columns(rows, styles={"OUTCOME": OUTCOME_STYLES}).split("\n")
    yield heading
    for attempt, line in zip(shown, lines, strict=True):
        yield line
        if attempt["trainingWith"] is not None:
            ran = _ran_for(attempt, job, now)
            yield from _lines(f"continued with {attempt['trainingWith']} for {ran}", width, indent="  ")
        if attempt["failure"] is not None:
            yield from _lines(_failure_line(attempt["failure"]), width, "red", indent="  ")
    if len(shown) < len(job["attempts"]):
        yield Text(f"{len(job['attempts']) - len(shown)} earlier attempts are left out: -o json has all", "dim")


def _time(job: Mapping[str, Any], now: datetime) -> list[RenderableType]:
    try:
        last = TrainingJob.of(job["job"])
    except ClientError:
        # The job's object wasn't recorded, or was written by another release, so the page omits the time spent.
        return []
    spent = last.status.time_spent
    return [] if spent is None else where_time_went(last, spent, to_datetime(job["deletedAt"]) or now)


def _lines(sentence: str, width: int | None, style: str = "", indent: str = "") -> Iterator[Text]:
    for line in wrapped(one_line(sentence), width, first=indent, further=indent + "  "):
        yield Text(line, style)


def _moment(at: datetime) -> str:
    try:
        return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        # In UTC, the year of this time is less than 1 or greater than 9999.
        return at.isoformat()


_CURVES: Mapping[str, tuple[str, Callable[[float], str], str]] = {
    "loss": ("loss", figure, "cyan"),
    "samplesPerSecond": ("samples/s", rate, "green"),
    "gradNorm": ("gradient norm", figure, "magenta"),
    "stepSeconds": ("step, median", step_time, "blue"),
    "slowestStepSeconds": ("step, slowest", step_time, "yellow"),
}


def curve_lines(series: Mapping[str, Any], width: int | None) -> Iterator[Text]:
    """Draws a validated series in lines of at most `width` columns. Fewer than two points give no lines.

    The ranks' own metrics follow the built-in curves.
    """
    times: list[float] = series["at"]
    if len(times) < 2 or times[-1] == times[0]:
        return
    curves = {name: (*_CURVES[name], series[name]) for name in _CURVES}
    curves |= {
        f"metrics.{name}": (shortened(one_line(name), LABEL_WIDTH - 1), figure, "white", values)
        for name, values in series["metrics"].items()
    }
    known = {name: [value for value in curve[3] if value is not None] for name, curve in curves.items()}
    drawn = [name for name, values in known.items() if values]
    if not drawn:
        return
    figures = {}
    for name in drawn:
        words, values = curves[name][1], known[name]
        figures[name] = f"{words(values[-1])}  ({words(min(values))} to {words(max(values))})"
    # The curves of the median step and of the slowest step use the same scale, so that a rank that is slower than the
    # others shows as a distance between the curves.
    steps = [value for name in ("stepSeconds", "slowestStepSeconds") for value in known[name]]
    beside = max(map(len, figures.values()))
    room = max(LEAST_WIDTH, min(width or PIPE_WIDTH, MOST_WIDTH) - LABEL_WIDTH - 2 - beside)
    for name in drawn:
        label, _, style, all_values = curves[name]
        means = spread(times, all_values, room)
        scale = steps if name.endswith("tepSeconds") else [value for value in means if value is not None]
        line = Text(label.ljust(LABEL_WIDTH), no_wrap=True, overflow="crop")
        yield line.append(blocks(means, min(scale), max(scale)), style).append(f"  {figures[name]}")
    starts = "".join(_starts(times, series["attempt"], room)).rstrip()
    if starts:
        yield Text("attempt".ljust(LABEL_WIDTH) + starts, "dim", no_wrap=True, overflow="crop")
    begin, end = (f"{datetime.fromtimestamp(at, UTC):%m-%d %H:%M}" for at in (times[0], times[-1]))
    axis = begin + end.rjust(room - len(begin)) if room >= len(begin + end) + 2 else begin
    yield Text("time (UTC)".ljust(LABEL_WIDTH) + axis, "dim", no_wrap=True, overflow="crop")


def shortened(name: str, width: int) -> str:
    """Returns a name that fits the width. If the name is too long, its middle is left out, because its end differs."""
    if len(name) <= width:
        return name
    end = width * 2 // 3
    return f"{name[: width - end - 1]}…{name[-end:]}"


def spread(times: Sequence[float], values: Sequence[float | None], columns: int) -> list[float | None]:
    """Returns the mean value in each of `columns` equal periods, or None for a period without values.

    If points are further apart than the periods, each value applies until the next point, except across a gap.
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


def _starts(times: Sequence[float], attempts: Sequence[int | None], columns: int) -> list[str]:
    """Returns a label line with each attempt's number at the attempt's start. Overlapping numbers are left out."""
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

"""One recorded job as a person reads it: facts, attempts with what ended them, where the time went, and the curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from trainmaster.cli.console import columns
from trainmaster.cli.history.listing import STYLES, failure_words, phase_of, ran_for, steps_of
from trainmaster.cli.history.sparklines import curve_lines
from trainmaster.cli.show import where_time_went
from trainmaster.cli.terminal import called, wrapped
from trainmaster.client import ClientError, TrainingJob
from trainmaster.client.view import duration, parse_time
from trainmaster_operator.api.printable import one_line
from trainmaster_operator.wire.values import is_number, mapping

OUTCOME_STYLES = {"Succeeded": "green", "Failed": "red", "Disrupted": "yellow", "Running": "cyan"}
# Of a job that was restarted more often the newest are shown; -o json has all.
MOST_ATTEMPTS = 20


def job_page(
    job: Mapping[str, Any], series: Mapping[str, Any], width: int | None, now: datetime | None = None
) -> Iterator[RenderableType]:
    """Yields the page of a checked RecordedJobDetail and its Series, in lines of at most `width` columns."""
    now = now or datetime.now(UTC)
    yield _headline(job, now)
    yield from _facts(job, width, now)
    if job["attempts"]:
        yield Text()
        yield from _attempts(job, width, now)
    time = _time(job, now)
    if time:
        yield Text()
        yield from time
    curves = list(curve_lines(series, width))
    if curves:
        yield Text()
        yield from curves
    failed = [each["attempt"] for each in job["attempts"] if each["failure"] is not None]
    if failed:
        life = f" --uid {job['uid']}" if len(job["lives"]) > 1 else ""
        words = f"history {job['name']} -n {job['namespace']}{life} --attempt {failed[-1]}"
        yield Text(one_line(f"more: {called()} {words}"), "dim")


def _headline(job: Mapping[str, Any], now: datetime) -> Text:
    phase = phase_of(job)
    line = Text.assemble((one_line(job["name"]), "bold"), "  ", (one_line(phase), STYLES.get(phase, "")))
    for name in ("attempt", "restarts", "disruptions"):
        if job[name] is not None and (job[name] or name != "disruptions"):
            line.append(f"  {name} {job[name]}")
    ran = ran_for(job["startedAt"], job["endedAt"] or job["deletedAt"], now)
    return line.append(f"  time {ran}" if ran else "")


def _facts(job: Mapping[str, Any], width: int | None, now: datetime) -> Iterator[Text]:
    progress = []
    if job["step"] is not None:
        progress.append(f"step {steps_of(job)}")
    if job["loss"] is not None:
        progress.append(f"loss {job['loss']:.4f}")
    if job["goodput"] is not None:
        progress.append(f"goodput {job['goodput']:.0%}")
    progress += [f"{name} {value:.4g}" for name, value in mapping(job["result"]).items() if is_number(value)]
    if progress:
        yield from _lines("  ".join(progress), width)
    life = [f"namespace {job['namespace']}", f"uid {job['uid']}"]
    for name in ("created", "deleted"):
        at = parse_time(job[f"{name}At"])
        if at is not None:
            life.append(f"{name} {_moment(at)} ({duration((now - at).total_seconds())} ago)")
    yield from _lines("  ".join(life), width, "dim")
    for other in job["lives"]:
        if other["uid"] != job["uid"]:
            created = parse_time(other["createdAt"])
            when = f", created {_moment(created)}" if created is not None else ""
            yield from _lines(f"another job of this name{when}: --uid {other['uid']}", width, "dim")


def _attempts(job: Mapping[str, Any], width: int | None, now: datetime) -> Iterator[Text]:
    """Yields a table of the attempts, and below the row of each that failed the failure's sentence."""
    shown = job["attempts"][-MOST_ATTEMPTS:]
    rows = []
    for attempt in shown:
        started = parse_time(attempt["startedAt"])
        ended = attempt["endedAt"] or job["endedAt"] or job["deletedAt"]
        first, last = attempt["firstStep"], attempt["lastStep"]
        rows.append(
            [
                str(attempt["attempt"]),
                "" if started is None else _moment(started),
                ran_for(attempt["startedAt"], ended, now),
                "" if first is None or last is None else f"{first} to {last}",
                attempt["outcome"] or "",
            ]
        )
    names = ["ATTEMPT", "STARTED (UTC)", "RAN FOR", "STEPS", "OUTCOME"]
    heading, *lines = columns(names, rows, {4: OUTCOME_STYLES}).split("\n")
    yield heading
    for attempt, line in zip(shown, lines, strict=True):
        yield line
        if attempt["trainingWith"] is not None:
            ended = attempt["endedAt"] or job["endedAt"] or job["deletedAt"]
            ran = ran_for(attempt["startedAt"], ended, now)
            yield from _lines(f"continued with {attempt['trainingWith']} for {ran}", width, indent="  ")
        if attempt["failure"] is not None:
            yield from _lines(failure_words(attempt["failure"]), width, "red", indent="  ")
    if len(shown) < len(job["attempts"]):
        yield Text(f"and {len(job['attempts']) - len(shown)} before them: -o json has all", "dim")


def _time(job: Mapping[str, Any], now: datetime) -> list[RenderableType]:
    try:
        last = TrainingJob.of(job["job"])
    except ClientError:
        # Nothing was recorded of the object, or it is of another release: the page does without.
        return []
    spent = last.status.time_spent
    return [] if spent is None else where_time_went(last, spent, (), parse_time(job["deletedAt"]) or now)


def _lines(sentence: str, width: int | None, style: str = "", indent: str = "") -> Iterator[Text]:
    for line in wrapped(one_line(sentence), width, first=indent, further=indent + "  "):
        yield Text(line, style)


def _moment(at: datetime) -> str:
    try:
        return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        # In UTC it would be before the year 1, or after 9999.
        return at.isoformat()

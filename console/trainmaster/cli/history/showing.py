"""Prints the jobs of a history for `kubectl dtj history`, and writes their curves to files."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from trainmaster.cli.console import SafeConsole
from trainmaster.cli.evidence import as_json, evidence_lines, print_page
from trainmaster.cli.history import FORMATS
from trainmaster.cli.history.page import job_page, job_table
from trainmaster.cli.output import object_name, print_value, require_room, write_file
from trainmaster.cli.terminal import say, terminal_width, write
from trainmaster.client import ClientError, JobNotFound
from trainmaster.client.blocking import run
from trainmaster.client.history import HistoryReader, curves, own_metrics, rank_figures, system_figures
from trainmaster.client.history.answers import MOST_JOBS
from trainmaster_operator.api.evidence import AttemptEvidence

STDOUT = "-"
TAIL_LINES = 20
# Maximum number of the ranks' own metrics on a job's page.
MOST_OWN = 8
_WHOLE = ("attempt", "step", "rank", "worker", "gpu")
Columns = Mapping[str, Sequence[Any]]


def show_list(reader: HistoryReader, namespace: str | None, limit: int, output: str | None) -> None:
    """Shows the newest recorded jobs of one or all namespaces; a limit of 0 means all jobs. Raises ClientError."""
    jobs, more = run(_recorded_jobs(reader, namespace, limit))
    if output == "name":
        for each in dict.fromkeys(job["name"] for job in jobs):
            say(object_name(each))
    elif output in ("json", "yaml"):
        print_value({"kind": "RecordedJobList", "items": jobs}, output)
    elif jobs:
        console = SafeConsole()
        console.print(job_table(jobs, namespaces=namespace is None, wide=output == "wide"), soft_wrap=True)
    else:
        where = "any namespace" if namespace is None else f"namespace {namespace}"
        say(f"No jobs were recorded in {where}.", error=True)
    if more:
        say(f"Only the newest {limit} are shown: --limit 0 shows all.", error=True)


def show_job(reader: HistoryReader, namespace: str, name: str, uid: str | None, output: str | None) -> None:
    job = run(reader.job(namespace, name, uid=uid))
    if output == "name":
        say(object_name(job["name"]))
    elif output in ("json", "yaml"):
        print_value(job, output)
    else:
        console = SafeConsole()
        if output == "wide":
            console.print(job_table([job], wide=True), soft_wrap=True)
            return
        own = run(own_metrics(reader, namespace, name, uid=job["uid"]))
        series = run(reader.series(namespace, name, uid=job["uid"], metrics=own[:MOST_OWN]))
        for part in job_page(job, series, terminal_width()):
            console.print(part, crop=False)
        if len(own) > MOST_OWN:
            say(f"{len(own) - MOST_OWN} more metrics are in the dashboard and in --export FILE.", error=True)


def show_attempt(
    reader: HistoryReader, namespace: str, name: str, uid: str | None, number: int, output: str | None
) -> None:
    """Shows an attempt's evidence, or prints the evidence as json or yaml. Raises ClientError."""
    job = run(reader.job(namespace, name, uid=uid))
    attempt = next((each for each in job["attempts"] if each["attempt"] == number), None)
    if attempt is None:
        numbers = [each["attempt"] for each in job["attempts"]]
        there = f"{numbers[0]} to {numbers[-1]} were recorded" if numbers else "none was recorded"
        raise JobNotFound(f"Job {name} has no attempt {number}: {there}")
    kept = run(reader.evidence(namespace, name, uid=job["uid"]))["items"]
    evidence = next((AttemptEvidence.parse(json.dumps(one)) for one in kept if one["attempt"] == number), None)
    if output is not None:
        print_value([] if evidence is None else as_json([evidence], None), output)
        return
    if evidence is None and attempt["failure"] is not None:
        # Even without evidence, the failure is known from the job's status.
        evidence = AttemptEvidence(attempt=number, failure=attempt["failure"])
    if evidence is None:
        say(f"Attempt {number}: {attempt['outcome'] or 'its end is unknown'}")
    else:
        print_page(evidence_lines([evidence], None))
    if attempt is job["attempts"][-1]:
        # The kept logs belong to the last attempt. The logs of earlier attempts are part of the evidence.
        try:
            logs = run(reader.logs(namespace, name, uid=job["uid"], tail=TAIL_LINES))["items"]
        except ClientError as error:
            say(f"The logs can't be shown: {error}", error=True)
            return
        for log in logs:
            print_page(
                [f"  The log of worker {log['worker']} ends:", *(f"    {line}" for line in log["lines"][-TAIL_LINES:])]
            )


def export_job(
    reader: HistoryReader,
    namespace: str,
    name: str,
    uid: str | None,
    file: str,
    format: str,
    *,
    ranks: bool,
    systems: bool,
) -> None:
    """Writes a job's curves, or the figures of its ranks or its workers' systems, to a file. Raises ClientError."""
    # This finds the job before the file is created, so that an unknown name leaves no empty file.
    uid = run(reader.job(namespace, name, uid=uid))["uid"]
    left_out = 0
    if ranks:
        columns, left_out = run(rank_figures(reader, namespace, name, uid=uid))
    elif systems:
        columns = run(system_figures(reader, namespace, name, uid=uid))
    else:
        columns = run(curves(reader, namespace, name, uid=uid))
    _export(columns, file, format)
    if left_out:
        say(f"{left_out} ranks are left out: the history can't show so many at once.", error=True)
    if file != STDOUT:
        say(f"{file}: {len(columns['at'])} rows, {len(columns)} columns")


async def _recorded_jobs(
    reader: HistoryReader, namespace: str | None, limit: int
) -> tuple[list[Mapping[str, Any]], bool]:
    """Returns the newest recorded jobs (all for a limit of 0), and whether there are more. Raises ClientError."""
    found: list[Mapping[str, Any]] = []
    after = ""
    while True:
        wanted = min(MOST_JOBS, limit - len(found)) if limit else MOST_JOBS
        page = await reader.jobs(namespace, limit=wanted, after=after)
        found += page["items"]
        before, after = after, page["continue"]
        # This also ends if a faulty history repeats its position or returns no jobs.
        if not after or after == before or not page["items"] or (limit and len(found) >= limit):
            return found[: limit or None], bool(after) or bool(limit and len(found) > limit)


def export_format(file: str, given: str | None, *, force: bool) -> str:
    """Returns the given format, or else the format that belongs to the file's suffix.

    Raises BadParameter, and ClientError if the file can't be written.
    """
    found = given or Path(file).suffix.removeprefix(".").lower()
    if found not in FORMATS:
        where = "stdout" if file == STDOUT else file
        raise typer.BadParameter(
            f"what format is {where} to have? Give --format {', '.join(FORMATS[:-1])} or {FORMATS[-1]}",
            param_hint="--export",
        )
    if found == "parquet" and file == STDOUT:
        raise typer.BadParameter("Parquet goes to a file; csv and json go to stdout too", param_hint="--export")
    if file != STDOUT:
        require_room(Path(file), force=force)
    if found == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ClientError("Parquet needs pyarrow: pip install 'trainmaster[parquet]'")
    return found


def _export(columns: Columns, file: str, format: str) -> None:
    """Writes columns of equal length. Raises ClientError if the file can't be written."""
    if format == "json":
        content = (json.dumps(columns, separators=(",", ":")) + "\n").encode()
    else:
        content = _csv(columns) if format == "csv" else _parquet(columns)
    if file == STDOUT:
        write(content.decode())
        return
    try:
        write_file(Path(file), content)
    except OSError as error:
        raise ClientError(f"{file} can't be written: {error.strerror or error}") from error


def _csv(columns: Columns) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow([str(value).lower() if isinstance(value, bool) else value for value in row])
    return out.getvalue().encode()


def _parquet(columns: Columns) -> bytes:
    import pyarrow
    import pyarrow.parquet

    special = {"redone": pyarrow.bool_(), "of": pyarrow.string(), **dict.fromkeys(_WHOLE, pyarrow.int64())}
    types = {name: special.get(name, pyarrow.float64()) for name in columns}
    table = pyarrow.table({name: pyarrow.array(values, types[name]) for name, values in columns.items()})
    out = io.BytesIO()
    pyarrow.parquet.write_table(table, out)
    return out.getvalue()

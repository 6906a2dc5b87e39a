"""What `kubectl dtj history` prints and writes, of a history that is open."""

from __future__ import annotations

from trainmaster.cli.console import SafeConsole
from trainmaster.cli.evidence import as_json, print_page
from trainmaster.cli.history.attempt import TAIL_LINES, attempt_lines, evidence_of, log_lines
from trainmaster.cli.history.exporting import STDOUT, export
from trainmaster.cli.history.listing import job_table, recorded_jobs
from trainmaster.cli.history.opening import OpenHistory
from trainmaster.cli.history.page import job_page
from trainmaster.cli.output import object_name, print_value
from trainmaster.cli.terminal import say, terminal_width
from trainmaster.client import ClientError, JobNotFound
from trainmaster.client.blocking import run
from trainmaster.client.history import curves, rank_figures


def show_list(opened: OpenHistory, namespace: str | None, limit: int, output: str | None) -> None:
    """Shows the newest recorded jobs of a namespace, or of all; 0 is no limit. Raises ClientError."""
    jobs, more = run(recorded_jobs(opened.reader, namespace, limit))
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


def show_job(opened: OpenHistory, name: str, uid: str | None, output: str | None) -> None:
    """Shows one job. Raises ClientError."""
    job = run(opened.reader.job(opened.namespace, name, uid=uid))
    if output == "name":
        say(object_name(job["name"]))
    elif output in ("json", "yaml"):
        print_value(job, output)
    else:
        console = SafeConsole()
        if output == "wide":
            console.print(job_table([job], wide=True), soft_wrap=True)
            return
        series = run(opened.reader.series(opened.namespace, name, uid=job["uid"]))
        for part in job_page(job, series, terminal_width()):
            console.print(part, crop=False)


def show_attempt(opened: OpenHistory, name: str, uid: str | None, number: int, output: str | None) -> None:
    """Shows what was kept of an attempt, or prints its evidence as json or yaml. Raises ClientError."""
    reader, namespace = opened.reader, opened.namespace
    job = run(reader.job(namespace, name, uid=uid))
    attempt = next((each for each in job["attempts"] if each["attempt"] == number), None)
    if attempt is None:
        numbers = [each["attempt"] for each in job["attempts"]]
        there = f"{numbers[0]} to {numbers[-1]} were recorded" if numbers else "none was recorded"
        raise JobNotFound(f"Job {name} has no attempt {number}: {there}")
    evidence = evidence_of(run(reader.evidence(namespace, name, uid=job["uid"])), number)
    if output is not None:
        print_value([] if evidence is None else as_json([evidence], None), output)
        return
    print_page(attempt_lines(evidence, attempt))
    if attempt is job["attempts"][-1]:
        # What is kept of the logs is what was printed last; of the other attempts their evidence has it.
        try:
            print_page(log_lines(run(reader.logs(namespace, name, uid=job["uid"], tail=TAIL_LINES))))
        except ClientError as error:
            say(f"The logs can't be shown: {error}", error=True)


def export_job(opened: OpenHistory, name: str, uid: str | None, file: str, format: str, *, ranks: bool) -> None:
    """Writes a job's curves, or the figures of its ranks, to a file. Raises ClientError."""
    reader, namespace = opened.reader, opened.namespace
    # Which job that name means is decided once, and one that isn't there is an error and no empty file.
    uid = run(reader.job(namespace, name, uid=uid))["uid"]
    left_out = 0
    if ranks:
        columns, left_out = run(rank_figures(reader, namespace, name, uid=uid))
    else:
        columns = run(curves(reader, namespace, name, uid=uid))
    export(columns, file, format)
    if left_out:
        say(f"{left_out} ranks are left out: the history shows no more of so many at once.", error=True)
    if file != STDOUT:
        say(f"{file}: {len(columns['at'])} rows, {len(columns)} columns")

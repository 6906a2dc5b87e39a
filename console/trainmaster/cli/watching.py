"""`kubectl dtj status --watch` and `list --watch` show jobs as they change.

In a terminal it is one picture, drawn anew at every change and every second, because it shows how long things have
lasted. Into a pipe it is a line for each change, as `kubectl get --watch` prints it, or the whole object for each.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from trainmaster.cli.console import SafeConsole
from trainmaster.cli.output import print_jobs, shown_object
from trainmaster.cli.show import failure_summary, job_cells, job_columns, job_table, job_view
from trainmaster.cli.terminal import say, write
from trainmaster.client import ClientError, JobClient, JobNotFound, NotAllowed, TrainingJob
from trainmaster_operator.api.printable import json_line, printable

TICK_SECONDS = 1.0
# A change of a job, and whether it is its deletion.
Change = tuple[TrainingJob, bool]
View = Callable[[], RenderableType]


def changes(jobs: JobClient, name: str) -> Iterator[Change]:
    """Yields the job that is named until it has ended. Raises JobNotFound at its deletion."""
    for job in jobs.watch(name):
        yield job, False
        if job.finished:
            return
    raise JobNotFound(f"Job {name} was deleted while it was watched.")


def print_objects(found: Iterable[Change], output: str) -> None:
    """Prints the object (or its name) for each change, as kubectl does; JSON in one line, so that lines can be read."""
    for job, _ in found:
        if output == "json":
            write(json_line(shown_object(job.raw)) + "\n")
        elif output == "yaml":
            write("---\n")
            print_jobs([job], output)
        else:
            print_jobs([job], output)


def print_rows(found: Iterable[Change], *, namespaces: bool, wide: bool = False) -> None:
    """Prints a row for each change that shows in one, the first below the names of the columns."""
    columns = job_columns(namespaces=namespaces, wide=wide)
    widths = [max(len(column), 10) for column in columns]
    age = columns.index("AGE")
    last: dict[str, list[str]] = {}
    for job, deleted in found:
        cells = [printable(cell) for cell in job_cells(job, namespaces=namespaces, wide=wide)]
        if deleted:
            cells[columns.index("PHASE")] = "Deleted"
        shown = [*cells[:age], *cells[age + 1 :]]
        if last.get(job.uid) == shown:
            # Of what isn't shown, or of the age alone.
            continue
        if not last:
            say(_row(columns, widths))
        last[job.uid] = shown
        widths = [max(width, len(cell)) for width, cell in zip(widths, cells, strict=True)]
        say(_row(cells, widths))
        if job.finished and failure_summary(job):
            say(f"{job.name}: {failure_summary(job)}", error=True)


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "   ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def draw(console: SafeConsole, views: Iterator[View]) -> None:
    """Draws each view when it comes, and the newest every second, without asking the API server for that."""
    found: queue.SimpleQueue[View | ClientError | None] = queue.SimpleQueue()

    def read() -> None:
        try:
            for view in views:
                found.put(view)
            found.put(None)
        except ClientError as error:
            found.put(error)

    threading.Thread(target=read, daemon=True).start()
    view = found.get()
    with Live(console=console, auto_refresh=False) as live:
        while callable(view):
            live.update(view(), refresh=True)
            try:
                view = found.get(timeout=TICK_SECONDS)
            except queue.Empty:
                # The same, of a later time.
                continue
    if isinstance(view, ClientError):
        raise view


def job_views(jobs: JobClient, found: Iterable[Change]) -> Iterator[View]:
    """Yields how to draw one job at any time, for each of its changes."""
    for job, _ in found:
        yield view_of(jobs, job)


def table_views(found: Iterable[Change], *, namespaces: bool, wide: bool = False) -> Iterator[View]:
    """Yields how to draw the table of all jobs at any time, for each change."""
    known: dict[str, TrainingJob] = {}
    for job, deleted in found:
        known.pop(job.uid, None)
        if not deleted:
            known[job.uid] = job
        ordered = sorted(known.values(), key=lambda each: (each.namespace, each.name))
        yield partial(job_table, ordered, namespaces=namespaces, wide=wide)


def view_of(jobs: JobClient, job: TrainingJob) -> View:
    """Returns how to draw a job at any time, with the pods that it has now, where the user may read them."""
    try:
        pods = jobs.pods(job.name)
    except NotAllowed as error:
        refusal = Text(printable(f"(without its pods: {error})"))
        return lambda: Group(job_view(job, []), refusal)
    return lambda: job_view(job, pods)

"""Prints jobs for `list` and `status`: as a table, as one job's view, or as objects for a program, once or watched.

With `--watch`, a terminal shows a picture, which is redrawn at every change and also every second, because it shows
ages. A pipe gets a line for each change, as with `kubectl get --watch`. With `-o json` or `-o yaml`, the whole object
is printed at each change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial

from rich.console import Group
from rich.text import Text

from trainmaster.cli.arguments import none_found
from trainmaster.cli.console import SafeConsole, padded
from trainmaster.cli.health import Health, say_silence
from trainmaster.cli.live import View, draw
from trainmaster.cli.output import print_document, print_list, print_object
from trainmaster.cli.show import job_cells, job_columns, job_table, job_view
from trainmaster.cli.terminal import say
from trainmaster.client import JobClient, JobNotFound, NotAllowed, TrainingJob
from trainmaster.client.view import view_of
from trainmaster_operator.api.printable import one_line, printable

# A job after a change, and whether it was deleted.
Change = tuple[TrainingJob, bool]


def show_jobs(
    jobs: JobClient, *, all_namespaces: bool, selector: str | None = None, watch: bool, output: str | None
) -> None:
    """Shows the jobs that the selector matches (default: all), and with `watch` every change."""
    found = jobs.list(all_namespaces=all_namespaces, selector=selector)
    console, names = SafeConsole(), job_columns(namespaces=all_namespaces, wide=output == "wide")
    none = none_found(jobs, all_namespaces, f" with {selector}" if selector else "")
    if watch:
        if not found:
            say(f"{none} Waiting for the first.", error=True)
        health = Health(jobs, is_drawn=console.is_terminal)
        changes = health.jobs.watch_all(all_namespaces=all_namespaces, selector=selector)
        _show_changes(console, health.seen(changes), table_views, output, names, health)
    elif output not in (None, "wide"):
        print_list([job.raw for job in found], output)
    elif found:
        console.print(job_table(found, names), soft_wrap=True)
        say_silence(jobs, found)
    else:
        say(none, error=True)


def show_job(jobs: JobClient, job: TrainingJob, *, watch: bool = False, output: str | None = None) -> None:
    """Shows one job, and with `watch` each change until it has ended. Raises JobNotFound if it is deleted."""
    console, names = SafeConsole(), job_columns(wide=output == "wide")
    if watch:
        health = Health(jobs, is_drawn=console.is_terminal)
        views = None if output == "wide" else lambda found, _: (view_of_job(health.jobs, each) for each, _ in found)
        _show_changes(console, health.seen(changes(health.jobs, job.name)), views, output, names, health)
    elif output == "wide":
        console.print(job_table([job], names), soft_wrap=True)
        say_silence(jobs, [job])
    elif output is not None:
        print_object(job.raw, output)
    else:
        console.print(view_of_job(jobs, job)(), crop=False)
        say_silence(jobs, [job])


def _show_changes(
    console: SafeConsole,
    found: Iterable[Change],
    views: Callable[[Iterable[Change], Sequence[str]], Iterator[View]] | None,
    output: str | None,
    names: Sequence[str],
    health: Health,
) -> None:
    if output not in (None, "wide"):
        for job, _ in found:
            print_document(job.raw, output)
    elif console.is_terminal and views is not None:
        draw(console, views(found, names), health.beside)
    else:
        print_rows(found, names)


def changes(jobs: JobClient, name: str) -> Iterator[Change]:
    """Yields the named job at each change until it has ended. Raises JobNotFound if it is deleted."""
    for job in jobs.watch(name):
        yield job, False
        if job.finished:
            return
    raise JobNotFound(f"Job {name} was deleted while it was watched.")


def print_rows(found: Iterable[Change], names: Sequence[str]) -> None:
    """Prints the columns' names, then a row for each change that is visible in the columns."""
    widths = [max(len(name), 10) for name in names]
    last: dict[str, dict[str, str]] = {}
    for job, deleted in found:
        view = view_of(job.raw)
        cells = {name: printable(cell) for name, cell in job_cells(view).items() if name in names}
        if deleted:
            cells["PHASE"] = "Deleted"
        shown = {name: cell for name, cell in cells.items() if name != "AGE"}
        trouble = view.trouble(datetime.now(UTC))
        # The time since a stall or a failure grows all the time; only a new one is printed.
        shown["trouble"] = f"{view.stalled_since}{len(view.failures)}{view.notice}" if trouble else ""
        if last.get(job.uid) == shown:
            continue
        if not last:
            say(padded(names, widths))
        last[job.uid] = shown
        row = [cells[name] for name in names]
        widths = [max(width, len(cell)) for width, cell in zip(widths, row, strict=True)]
        say(padded(row, widths))
        if view.failure or trouble:
            say(one_line(f"{job.name}: {view.failure or trouble}"), error=True)


def table_views(found: Iterable[Change], names: Sequence[str]) -> Iterator[View]:
    """Yields a function after each change. It draws the table of all jobs, with their ages at the time of the call."""
    known: dict[str, TrainingJob] = {}
    for job, deleted in found:
        known.pop(job.uid, None)
        if not deleted:
            known[job.uid] = job
        ordered = sorted(known.values(), key=lambda each: (each.namespace, each.name))
        yield partial(job_table, ordered, names)


def view_of_job(jobs: JobClient, job: TrainingJob) -> View:
    """Returns a function that draws a job as of the time of the call, with its pods if the user may read them."""
    try:
        pods = jobs.pods(job.name)
    except NotAllowed as error:
        refusal = Text(printable(f"(without its pods: {error})"))
        return lambda: Group(job_view(job, []), refusal)
    return lambda: job_view(job, pods)

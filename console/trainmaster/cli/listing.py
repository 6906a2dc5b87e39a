"""Jobs are printed as `list` and `status` do: as a table, as one job's view, or as objects for a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmaster.cli.output import print_jobs
from trainmaster.cli.terminal import say

if TYPE_CHECKING:
    from trainmaster.client import JobClient, TrainingJob


def show_jobs(
    jobs: JobClient,
    *,
    all_namespaces: bool = False,
    selector: str | None = None,
    watch: bool = False,
    output: str | None = None,
) -> None:
    """Shows all jobs (with a selector, those that have such labels), and with `watch` each change for ever."""
    from trainmaster.cli import watching
    from trainmaster.cli.console import SafeConsole
    from trainmaster.cli.show import job_table

    found = jobs.list(all_namespaces=all_namespaces, selector=selector)
    console, wide = SafeConsole(), output == "wide"
    where = "any namespace" if all_namespaces else f"namespace {jobs.namespace}"
    none = f"No DistributedTrainingJobs in {where}{f' with {selector}' if selector else ''}."
    if not watch:
        if output not in (None, "wide"):
            print_jobs(found, output, listed=True)
        elif found:
            console.print(job_table(found, namespaces=all_namespaces, wide=wide), soft_wrap=True)
        else:
            say(none, error=True)
        return
    if not found:
        say(f"{none} Waiting for the first.", error=True)
    changes = jobs.watch_all(all_namespaces=all_namespaces, selector=selector)
    if output not in (None, "wide"):
        watching.print_objects(changes, output)
        return
    if console.is_terminal:
        watching.draw(console, watching.table_views(changes, namespaces=all_namespaces, wide=wide))
    else:
        watching.print_rows(changes, namespaces=all_namespaces, wide=wide)


def show_job(jobs: JobClient, job: TrainingJob, *, watch: bool = False, output: str | None = None) -> None:
    """Shows one job, and with `watch` each change until it has ended. Raises JobNotFound at its deletion."""
    from trainmaster.cli import watching
    from trainmaster.cli.console import SafeConsole
    from trainmaster.cli.show import job_table

    console, wide = SafeConsole(), output == "wide"
    if watch:
        changes = watching.changes(jobs, job.name)
        if output not in (None, "wide"):
            watching.print_objects(changes, output)
        elif console.is_terminal and not wide:
            watching.draw(console, watching.job_views(jobs, changes))
        else:
            watching.print_rows(changes, namespaces=False, wide=wide)
    elif wide:
        console.print(job_table([job], wide=True), soft_wrap=True)
    elif output is not None:
        print_jobs([job], output)
    else:
        console.print(watching.view_of(jobs, job)(), crop=False)

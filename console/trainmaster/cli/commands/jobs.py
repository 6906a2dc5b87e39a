"""`list`, `status`, `top` and `why` show jobs: as a table, in full, live, and with the reason for their state."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.arguments import Everywhere, find_job, name_argument, none_found, require_one
from trainmaster.cli.connection import Connection, connected
from trainmaster.cli.output import ObjectOutput, Output, print_value
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say, terminal_width, wrapped

app = Part()


@app.command("list")
@connected
def list_jobs(
    connection: Connection,
    everywhere: Everywhere = False,
    selector: Annotated[
        str | None,
        typer.Option("--selector", "-l", metavar="LABELS", help="Show only jobs with such labels: team=a,tier!=b."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show every change.")] = False,
    output: Output = None,
) -> None:
    """List jobs: phase, attempt, workers, progress."""
    from trainmaster.cli import listing

    jobs = connection.client()
    listing.show_jobs(jobs, all_namespaces=everywhere, selector=selector, watch=watch, output=output)


@app.command("status")
@connected
def status(
    connection: Connection,
    name: Annotated[str | None, name_argument("Name of the job; default: all jobs.")] = None,
    everywhere: Everywhere = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show every change until a job has ended.")] = False,
    output: Output = None,
) -> None:
    """Show a job's attempt, workers, progress and failures."""
    from trainmaster.cli import listing

    require_one(name, everywhere)
    jobs = connection.client()
    if name is None:
        listing.show_jobs(jobs, all_namespaces=everywhere, watch=watch, output=output)
    else:
        listing.show_job(jobs, find_job(jobs, name), watch=watch, output=output)


@app.command("top")
@connected
def top(
    connection: Connection,
    name: Annotated[str | None, name_argument("Name of the job; default: all unfinished jobs.")] = None,
    everywhere: Everywhere = False,
) -> None:
    """Show progress, ranks, workers and events as they change; q leaves.

    Into a pipe it prints one picture.
    """
    from trainmaster.cli.console import SafeConsole
    from trainmaster.cli.health import Health, say_silence
    from trainmaster.cli.live import draw_full_screen
    from trainmaster.cli.top import job_views, jobs_views

    require_one(name, everywhere)
    console = SafeConsole()
    client = connection.client()
    job = None if name is None else find_job(client, name)
    health = Health(client, is_drawn=console.is_terminal)
    views = jobs_views(health, all_namespaces=everywhere) if job is None else job_views(health, job)
    if console.is_terminal:
        draw_full_screen(console, views, health.beside)
    else:
        console.print(next(views)())
        say_silence(client, health.shown)


@app.command("why")
@connected
def why(
    connection: Connection,
    name: Annotated[str | None, name_argument("Name of the job; default: every job in trouble, a line each.")] = None,
    everywhere: Everywhere = False,
    output: ObjectOutput = None,
) -> None:
    """Explain why a job waits, has failed or is slow: cause, evidence, next steps.

    It reads what you may read, and lists what it couldn't read. Nothing is changed.
    """
    from trainmaster.cli import why as answers

    require_one(name, everywhere)
    jobs = connection.client()
    if name is not None:
        answer = answers.why(jobs, find_job(jobs, name))
        if output is not None:
            print_value(answer.to_json(), output)
            return
        for line in answers.why_lines(answer, terminal_width()):
            say(line)
        return
    listed = jobs.list(all_namespaces=everywhere)
    found = answers.why_not_fine(jobs, listed)
    if output is not None:
        print_value([answer.to_json() for answer in found], output)
        return
    for answer in found:
        for line in wrapped(answers.brief(answer, namespaces=everywhere), terminal_width(), further="  "):
            say(line)
    if not found:
        say(none_found(jobs, everywhere, kind="jobs in trouble" if listed else "jobs"), error=True)

"""`kubectl dtj why` says what keeps a job from running, why it failed, or what makes it slow."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.connection import Connection, connected
from trainmaster.cli.job_names import complete_job, find_job, plain_name
from trainmaster.cli.output import ObjectOutput, print_value
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say, terminal_width, wrapped

app = Part()


@app.command()
@connected
def why(
    connection: Connection,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Name of the job; without, every job that is not fine, a line each.",
            autocompletion=complete_job,
            callback=plain_name,
            show_default=False,
        ),
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="The jobs of all namespaces; without a name.")
    ] = False,
    output: ObjectOutput = None,
) -> None:
    """Say why a job waits, has failed or is slow: one cause, its evidence, and what to do next.

    It reads what you may read, and says what it couldn't read. Nothing is changed.
    """
    from trainmaster.cli import why as answers

    jobs = connection.client()
    if name is not None:
        if everywhere:
            raise typer.BadParameter(
                "a job is in one namespace; name that with --namespace", param_hint="--all-namespaces"
            )
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
        where = "any namespace" if everywhere else f"namespace {jobs.namespace}"
        say(f"No job of {where} is in trouble." if listed else f"There are no jobs in {where}.", error=True)

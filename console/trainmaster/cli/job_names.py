"""Jobs are named as kubectl names objects, completed by Tab, and looked for with the names that are near."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.program import called

if TYPE_CHECKING:
    from trainmaster.client import JobClient, TrainingJob


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of jobs for tab completion; none when no cluster answers."""
    from trainmaster.cli.connection_values import job_names

    return job_names(ctx, incomplete)


def plain_name(value: str | None) -> str | None:
    """Returns a job's name, also where it is given as kubectl reads it: dtj/NAME, in any case. Raises BadParameter."""
    from trainmaster.client import InvalidRequest, require_name
    from trainmaster_operator.api.v1alpha1 import GROUP, PLURAL, SHORT_NAME, SINGULAR

    if value is None:
        return None
    kind, slash, name = value.rpartition("/")
    known = (SHORT_NAME, SINGULAR, PLURAL, f"{SINGULAR}.{GROUP}", f"{PLURAL}.{GROUP}")
    plain = name if slash and kind.lower() in known else value
    try:
        require_name(plain)
    except InvalidRequest as error:
        raise typer.BadParameter(str(error)) from error
    return plain


def plain_names(values: list[str]) -> list[str]:
    """Returns the names of several jobs, each once. Raises BadParameter."""
    return list(dict.fromkeys(plain for value in values if (plain := plain_name(value)) is not None))


JobName = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the job.", autocompletion=complete_job, callback=plain_name, show_default=False
    ),
]
JobNames = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME",
        help="Names of the jobs.",
        autocompletion=complete_job,
        callback=plain_names,
        show_default=False,
    ),
]


def find_job(jobs: JobClient, name: str) -> TrainingJob:
    """Returns the job. Raises JobNotFound, with the names that are nearest where the user may list them."""
    from difflib import get_close_matches

    from trainmaster.client import ClientError, JobNotFound

    try:
        return jobs.get(name)
    except JobNotFound as error:
        try:
            near = get_close_matches(name, [job.name for job in jobs.list()], n=3)
        except ClientError:
            raise error from None
        remedy = f"did you mean {' or '.join(near)}?" if near else f"{called()} list -A shows those that are there"
        raise JobNotFound(f"There is no job {name} in namespace {jobs.namespace}; {remedy}") from error

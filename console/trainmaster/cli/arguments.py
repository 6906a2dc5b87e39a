"""Defines arguments that several commands take: jobs, their workers, ranks and attempts, and files.

If a value is impossible, the error message lists the possible values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trainmaster.cli.connection import Connection, completions, path_argument, seconds
from trainmaster.cli.terminal import called

if TYPE_CHECKING:
    from trainmaster.client import JobClient, TrainingJob


def complete_job(ctx: typer.Context) -> list[str]:
    return completions(lambda: (job.name for job in Connection.of(ctx).client().list()))


def plain_name(value: Any) -> Any:
    """Returns a job's name, or the distinct names of several. Accepts kubectl's dtj/NAME in any case.

    Raises BadParameter.
    """
    from trainmaster.client import InvalidRequest, require_name
    from trainmaster_operator.api.v1alpha1 import GROUP, PLURAL, SHORT_NAME, SINGULAR

    if value is None:
        return None
    if not isinstance(value, str):
        return list(dict.fromkeys(map(plain_name, value)))
    kind, slash, name = value.rpartition("/")
    known = (SHORT_NAME, SINGULAR, PLURAL, f"{SINGULAR}.{GROUP}", f"{PLURAL}.{GROUP}")
    plain = name if slash and kind.lower() in known else value
    try:
        require_name(plain)
    except InvalidRequest as error:
        raise typer.BadParameter(str(error)) from error
    return plain


def name_argument(help: str, complete: Callable[..., list[str]] = complete_job) -> Any:
    """Returns an argument that takes one job's name or several. A command can make the name optional by a default."""
    return typer.Argument(metavar="NAME", help=help, autocompletion=complete, callback=plain_name, show_default=False)


def duration_option(help: str = "Wait at most this long: seconds, or 30s, 5m.", flag: str = "--timeout") -> Any:
    return typer.Option(flag, help=help, parser=seconds, metavar="<time>")


JobName = Annotated[str, name_argument("Name of the job.")]
JobNames = Annotated[list[str], name_argument("Names of the jobs.")]
Timeout = Annotated[float | None, duration_option()]
Everywhere = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Show all namespaces.")]
_FILES = "YAML or JSON files with one or more documents, or folders; - is stdin."
Files = Annotated[list[str], path_argument(metavar="FILE", help=_FILES)]


def require_one(name: str | None, everywhere: bool) -> None:
    """Raises BadParameter if both a job's name and all namespaces are given."""
    if name is not None and everywhere:
        raise typer.BadParameter("a job is in one namespace; name that with --namespace", param_hint="--all-namespaces")


def none_found(jobs: JobClient, everywhere: bool, beside: str = "", kind: str = "jobs") -> str:
    return f"No {kind} in {'any namespace' if everywhere else f'namespace {jobs.namespace}'}{beside}."


def find_job(jobs: JobClient, name: str) -> TrainingJob:
    """Returns the job. Raises JobNotFound; its message contains similar names if the user is allowed to list jobs."""
    from difflib import get_close_matches

    from trainmaster.client import ClientError, JobNotFound

    try:
        return jobs.get(name)
    except JobNotFound as error:
        try:
            near = get_close_matches(name, [job.name for job in jobs.list()], n=3)
        except ClientError:
            raise error from None
        remedy = f"did you mean {' or '.join(near)}?" if near else f"{called()} list -A shows all jobs"
        raise JobNotFound(f"There is no job {name} in namespace {jobs.namespace}; {remedy}") from error


def require_index(job: TrainingJob, kind: Literal["worker", "rank"], index: int) -> None:
    """Raises JobNotFound if the job can't have this worker or rank."""
    from trainmaster.client import JobNotFound

    most = most_workers(job) if kind == "worker" else _most_ranks(job)
    if 0 < most <= index:
        there = f"{kind} 0 alone" if most == 1 else f"{kind}s 0 to {most - 1}"
        raise JobNotFound(f"Job {job.name} has no {kind} {index}: it has {there}")


def require_attempt(job: TrainingJob, attempt: int) -> None:
    """Raises JobNotFound if the attempt hasn't begun."""
    from trainmaster.client import JobNotFound

    newest = job.status.attempt
    if attempt > newest:
        there = f"its newest is {newest}" if newest else "none has begun"
        raise JobNotFound(f"Job {job.name} has no attempt {attempt}: {there}")


def most_workers(job: TrainingJob) -> int:
    """Returns the maximum number of the job's workers, including spares; 0 if unknown."""
    spec: Any = job.raw.get("spec") or {}
    elastic = spec.get("elastic")
    sizes = [job.status.workers.desired, spec.get("workers"), elastic.get("maxWorkers") if elastic else None]
    most = max((size for size in sizes if isinstance(size, int)), default=0)
    if most:
        # Spares count, because a spare's output becomes a worker's output once the spare has replaced that worker.
        most += sum(group.get("spares") or 0 for group in (spec, *(spec.get("workerGroups") or ())))
    return most


def _most_ranks(job: TrainingJob) -> int:
    """Returns the maximum number of the job's ranks; 0 if unknown."""
    # Imported here, because the imports take a tenth of a second, and most commands name no rank.
    from trainmaster_operator.api.parsing import InvalidJob, parse_spec
    from trainmaster_operator.api.v1alpha1.names import JobIdentity
    from trainmaster_operator.rendering import worker_layout, world_size

    try:
        spec = parse_spec(job.raw.get("spec"), job.name)
    except InvalidJob:
        # The job was written for another release, or the operator refused it.
        return 0
    layout = worker_layout(JobIdentity(job.namespace, job.name, job.uid), spec)
    if len(layout) > 1:
        return world_size(layout)
    most = max(layout[0].count, job.status.workers.desired, spec.elastic.max_workers if spec.elastic else 0)
    return most * layout[0].processes

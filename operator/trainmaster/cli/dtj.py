"""`kubectl dtj` shows what kubectl alone doesn't show of a DistributedTrainingJob.

kubectl finds the program `kubectl-dtj` on the PATH. Exit codes: 0 done (wait: the job succeeded), 1 the job failed or
the request was refused, 2 wrong usage, 3 the time given was over.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.terminal import Program, say, write
from trainmaster.cli.wrong_values import Commands

if TYPE_CHECKING:
    from trainmaster.client import JobClient, TrainingJob

_KUBECTLS_VERBS = frozenset(["annotate", "delete", "describe", "edit", "get", "label", "patch", "scale"])


class DtjCommands(Commands):
    """The commands of `kubectl dtj`; a verb that kubectl itself has for jobs is sent there."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the command that the arguments name. Raises UsageError."""
        if args[0] in _KUBECTLS_VERBS:
            ctx.fail(f"No such command '{args[0]}'. Use kubectl {args[0]} dtj.")
        return super().resolve_command(ctx, args)


app = Program(
    name="kubectl-dtj",
    cls=DtjCommands,
    help="Show, wait for, suspend and resume DistributedTrainingJobs.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace; default: the context's.")]
Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")]
Kubeconfig = Annotated[str | None, typer.Option("--kubeconfig", help="Path of the kubeconfig.")]


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of jobs for tab completion; none when no cluster answers."""
    from trainmaster.api.printable import printable
    from trainmaster.client import ClientError, JobClient

    options = ctx.params
    try:
        jobs = JobClient(options.get("namespace"), kubeconfig=options.get("kubeconfig"), context=options.get("context"))
        return [printable(job.name) for job in jobs.list() if job.name.startswith(incomplete)]
    except ClientError:
        return []


def wait_targets() -> list[str]:
    """Returns all values of `wait --for`."""
    from typing import get_args

    from trainmaster.api.v1alpha1 import Phase

    return ["finished", *map(str.lower, get_args(Phase))]


def complete_phase(incomplete: str) -> list[str]:
    """Returns the values of `wait --for` that begin so, for tab completion."""
    return [each for each in wait_targets() if each.startswith(incomplete.lower())]


def plain_name(value: str | None) -> str | None:
    """Returns a job's name, also where it is given as kubectl reads it: dtj/NAME, in any case. Raises BadParameter."""
    from trainmaster.api.v1alpha1 import GROUP, PLURAL, SHORT_NAME, SINGULAR
    from trainmaster.client import InvalidRequest, require_name

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


def seconds(value: str) -> float:
    """Parses a duration as kubectl does: 30, 30s, 5m, 1h30m. Raises BadParameter."""
    parts = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", value)
    if not value or parts is None:
        raise typer.BadParameter(f"{value!r} is no duration; use seconds, or 30s, 5m, 1h30m")
    hours, minutes, rest = (float(part or 0) for part in parts.groups())
    return hours * 3600 + minutes * 60 + rest


JobName = Annotated[
    str, typer.Argument(help="Name of the job.", autocompletion=complete_job, callback=plain_name, show_default=False)
]


@contextmanager
def errors_reported() -> Iterator[None]:
    """Turns the client's errors into one line on stderr and an exit code."""
    from trainmaster.client import ClientError, WaitTimeout

    try:
        yield
    except WaitTimeout as error:
        say(f"error: {error}", error=True)
        raise typer.Exit(3) from error
    except ClientError as error:
        say(f"error: {error}", error=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        # A second Ctrl-C would only interrupt the tidying up.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise typer.Exit(130) from None


def _client(namespace: str | None, kubeconfig: str | None, context: str | None) -> JobClient:
    from trainmaster.client import JobClient

    return JobClient(namespace, kubeconfig=kubeconfig, context=context)


@app.command()
def status(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of the job; all jobs without.", autocompletion=complete_job, callback=plain_name),
    ] = None,
    namespace: Namespace = None,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="The jobs of all namespaces; without a name.")
    ] = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show every change, of one job until it has ended.")
    ] = False,
    output: Annotated[str | None, typer.Option("--output", "-o", help="json: the status as JSON.")] = None,
) -> None:
    """Show where a job stands: attempt, workers, progress, failures."""
    from trainmaster.api.printable import json_text
    from trainmaster.cli import watching
    from trainmaster.cli.console import SafeConsole
    from trainmaster.cli.show import as_json, job_table

    if output not in (None, "json"):
        raise typer.BadParameter(f"{output!r} is not known; use json", param_hint="--output")
    if name is not None and everywhere:
        raise typer.BadParameter("a job is in one namespace; name that with --namespace", param_hint="--all-namespaces")
    console = SafeConsole()
    with errors_reported():
        jobs = _client(namespace, kubeconfig, context)
        known = None if name is None else _find(jobs, name)
        if watch:
            if known is None and not jobs.list(all_namespaces=everywhere):
                say(f"{_none_in(jobs, everywhere)} Waiting for the first.", error=True)
            found = watching.changes(jobs, name, all_namespaces=everywhere)
            if output == "json":
                watching.print_documents(found)
            elif not console.is_terminal:
                watching.print_rows(found, namespaces=everywhere)
            elif known is not None:
                watching.draw(console, watching.job_views(jobs, found))
            else:
                watching.draw(console, watching.table_views(found, namespaces=everywhere))
        elif known is not None:
            if output == "json":
                write(json_text(as_json(known)) + "\n")
            else:
                console.print(watching.view_of(jobs, known)())
        else:
            listed = jobs.list(all_namespaces=everywhere)
            if output == "json":
                write(json_text([as_json(job) for job in listed]) + "\n")
            elif listed:
                console.print(job_table(listed, namespaces=everywhere))
            else:
                say(_none_in(jobs, everywhere), error=True)


@app.command()
def logs(
    name: JobName,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    worker: Annotated[int | None, typer.Option("--worker", help="Only this worker's output.", min=0)] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for output and print it as it comes, until the job has ended.")
    ] = False,
    tail: Annotated[int | None, typer.Option("--tail", help="Only the last lines of each worker.", min=0)] = None,
) -> None:
    """Print the output of a job's workers, also after the pods are gone.

    With -f it goes on through restarts, replaced pods, suspend and resume. What it waits for, and how the job ended, is
    on stderr.
    """
    from trainmaster.cli.following import Follower, print_logs

    with errors_reported():
        jobs = _client(namespace, kubeconfig, context)
        job = _find(jobs, name)
        if follow:
            Follower(jobs, job, worker, tail).run()
        else:
            print_logs(jobs, job, worker, tail)


@app.command()
def evidence(
    name: JobName,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    attempt: Annotated[int | None, typer.Option("--attempt", help="Only this attempt.", min=1)] = None,
    rank: Annotated[int | None, typer.Option("--rank", help="Only this rank, with all its stacks.", min=0)] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="json: all that was kept.")] = None,
) -> None:
    """Show what was kept of attempts that ended badly: who, why, stacks and log ends, also after the pods are gone."""
    from trainmaster.api.printable import json_text
    from trainmaster.cli.evidence import as_json, evidence_lines

    if output not in (None, "json"):
        raise typer.BadParameter(f"{output!r} is not known; use json", param_hint="--output")
    with errors_reported():
        jobs = _client(namespace, kubeconfig, context)
        _find(jobs, name)
        found = [one for one in jobs.evidence(name) if attempt in (None, one.attempt)]
        if output == "json":
            write(json_text(as_json(found, rank)) + "\n")
        elif found:
            for line in evidence_lines(found, rank):
                say(line)
        else:
            which = "" if attempt is None else f" of attempt {attempt}"
            say(f"No evidence{which} was kept of job {name}: it is written when an attempt fails.", error=True)


@app.command()
def wait(
    name: JobName,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    phase: Annotated[
        str,
        typer.Option("--for", help="finished, running, or a phase such as Suspended.", autocompletion=complete_phase),
    ] = "finished",
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", help="Time to wait at most: seconds, or 30s, 5m.", parser=seconds, metavar="<time>"),
    ] = None,
) -> None:
    """Wait until a job has ended, or is in a phase.

    Exits with 0 when it succeeded or is in that phase, 1 when it ended otherwise, 3 when the time is over.
    """
    from trainmaster.cli.show import failure_summary

    if phase.lower() not in wait_targets():
        kubectls = "; conditions are for kubectl wait" if "=" in phase else ""
        targets = ", ".join(wait_targets())
        raise typer.BadParameter(f"{phase!r} is no phase; use one of {targets}{kubectls}", param_hint="--for")
    with errors_reported():
        jobs = _client(namespace, kubeconfig, context)
        wanted = phase.capitalize()
        _find(jobs, name)
        job = jobs.wait(
            name,
            until=lambda job: job.finished or (wanted != "Finished" and job.phase == wanted),
            timeout=timeout,
        )
        say(f"{name}: {job.phase}" + (f" ({failure_summary(job)})" if failure_summary(job) else ""))
        if job.phase != wanted and not (job.phase == "Succeeded" and wanted in ("Finished", "Running")):
            raise typer.Exit(1)


@app.command()
def suspend(name: JobName, namespace: Namespace = None, context: Context = None, kubeconfig: Kubeconfig = None) -> None:
    """Stop a job with a checkpoint and free what it holds, until it is resumed."""
    with errors_reported():
        jobs = _client(namespace, kubeconfig, context)
        if _find(jobs, name).to_be_suspended:
            say(f"{name}: is suspended already")
        else:
            jobs.suspend(name)
            say(f"{name}: to be suspended")


@app.command()
def resume(name: JobName, namespace: Namespace = None, context: Context = None, kubeconfig: Kubeconfig = None) -> None:
    """Let a suspended job go on from its checkpoint."""
    with errors_reported():
        jobs = _client(namespace, kubeconfig, context)
        job = _find(jobs, name)
        jobs.resume(name)
        say(f"{name}: to go on" if job.to_be_suspended else f"{name}: is not suspended; it is {job.phase}")


def _none_in(jobs: JobClient, everywhere: bool) -> str:
    return f"No DistributedTrainingJobs in {'any namespace' if everywhere else f'namespace {jobs.namespace}'}."


def _find(jobs: JobClient, name: str) -> TrainingJob:
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
        remedy = f"did you mean {' or '.join(near)}?" if near else "kubectl dtj status -A shows those that are there"
        raise JobNotFound(f"There is no job {name} in namespace {jobs.namespace}; {remedy}") from error


if __name__ == "__main__":
    app()

"""`kubectl dtj` shows what kubectl alone doesn't show of a DistributedTrainingJob.

kubectl finds the program `kubectl-dtj` on the PATH. Exit codes: 0 done (wait: the job succeeded), 1 the job failed or
the request was refused, 2 wrong usage, 3 the time given was over.
"""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.terminal import Program, log_line, say, write

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trainmaster.client import JobClient, TrainingJob

app = Program(
    name="kubectl-dtj",
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
    """Returns a job's name, also where it is given as kubectl prints and reads it: dtj/NAME. Raises BadParameter."""
    from trainmaster.api.v1alpha1 import GROUP, PLURAL, SHORT_NAME, SINGULAR
    from trainmaster.client import InvalidRequest, require_name

    if value is None:
        return None
    kind, slash, name = value.rpartition("/")
    known = (SHORT_NAME, SINGULAR, PLURAL, f"{SINGULAR}.{GROUP}", f"{PLURAL}.{GROUP}")
    plain = name if slash and kind in known else value
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
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until the job has ended.")] = False,
    output: Annotated[str | None, typer.Option("--output", "-o", help="json: the status as JSON.")] = None,
) -> None:
    """Show where a job stands: attempt, workers, progress, failures."""
    from rich.live import Live

    from trainmaster.api.printable import json_text
    from trainmaster.cli.console import SafeConsole
    from trainmaster.cli.show import job_table

    if output not in (None, "json"):
        raise typer.BadParameter(f"{output!r} is not known; use json", param_hint="--output")
    if name is not None and everywhere:
        raise typer.BadParameter("a job is in one namespace; name that with --namespace", param_hint="--all-namespaces")
    console = SafeConsole()
    with errors_reported():
        jobs = _client(namespace, kubeconfig, context)
        if name is None:
            found = jobs.list(all_namespaces=everywhere)
            if output == "json":
                write(json_text([_as_json(job) for job in found]) + "\n")
            elif found:
                console.print(job_table(found, namespaces=everywhere))
            else:
                where = "any namespace" if everywhere else f"namespace {jobs.namespace}"
                say(f"No DistributedTrainingJobs in {where}.", error=True)
            return
        job = jobs.get(name)
        if output == "json":
            write(json_text(_as_json(job)) + "\n")
            return
        if not watch:
            console.print(_view(jobs, job))
            return
        with Live(_view(jobs, job), console=console, auto_refresh=False) as live:
            for job in jobs.watch(name):
                live.update(_view(jobs, job), refresh=True)
                if job.finished:
                    return


@app.command()
def logs(
    name: JobName,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    worker: Annotated[int | None, typer.Option("--worker", help="Only this worker's output.", min=0)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as output comes.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", help="Only the last lines of each worker.", min=0)] = None,
) -> None:
    """Print the output of a job's workers, also after the pods are gone."""
    with errors_reported():
        jobs = _client(namespace, kubeconfig, context)
        jobs.get(name)
        workers = [worker] if worker is not None else _workers(jobs, name)
        waiting = _not_started(jobs, name)
        for each in sorted(waiting.keys() & set(workers)):
            say(f"Worker {each} has no output yet: {waiting[each]}.", error=True)
            workers.remove(each)
        if not workers and waiting:
            return
        if not workers:
            say(f"Job {name} has no output: it has no pods, and none was kept.", error=True)
            return
        if not follow or len(workers) == 1:
            for each in workers:
                for line in jobs.logs(name, each, follow=follow, tail=tail):
                    log_line(line, _label(each, len(workers)))
            return
        _follow_all(jobs, name, workers, tail)


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
        jobs.get(name)
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
    if phase.lower() not in wait_targets():
        raise typer.BadParameter(f"{phase!r} is no phase; use one of {', '.join(wait_targets())}", param_hint="--for")
    with errors_reported():
        jobs = _client(namespace, kubeconfig, context)
        wanted = phase.capitalize()
        job = jobs.wait(
            name,
            until=lambda job: job.finished or (wanted != "Finished" and job.phase == wanted),
            timeout=timeout,
        )
        say(f"{name}: {job.phase}" + (f" ({_failure_summary(job)})" if _failure_summary(job) else ""))
        if job.phase != wanted and not (job.phase == "Succeeded" and wanted in ("Finished", "Running")):
            raise typer.Exit(1)


@app.command()
def suspend(name: JobName, namespace: Namespace = None, context: Context = None, kubeconfig: Kubeconfig = None) -> None:
    """Stop a job with a checkpoint and free what it holds, until it is resumed."""
    with errors_reported():
        job = _client(namespace, kubeconfig, context).suspend(name)
        say(f"{name}: {job.phase} already" if job.finished else f"{name}: to be suspended")


@app.command()
def resume(name: JobName, namespace: Namespace = None, context: Context = None, kubeconfig: Kubeconfig = None) -> None:
    """Let a suspended job go on from its checkpoint."""
    with errors_reported():
        job = _client(namespace, kubeconfig, context).resume(name)
        say(f"{name}: {job.phase} already" if job.finished else f"{name}: to go on")


def _view(jobs: JobClient, job: TrainingJob) -> RenderableType:
    """Returns the view of a job, with its pods where the user may read them."""
    from rich.console import Group

    from trainmaster.cli.show import job_view
    from trainmaster.client import NotAllowed

    try:
        return job_view(job, jobs.pods(job.name))
    except NotAllowed as error:
        return Group(job_view(job, []), f"(without its pods: {error})")


def _workers(jobs: JobClient, name: str) -> list[int]:
    from trainmaster.client import worker_index

    pods = jobs.pods(name)
    if pods:
        return [worker_index(pod) for pod in pods]
    return jobs.kept_workers(name)


def _not_started(jobs: JobClient, name: str) -> dict[int, str]:
    """Returns, by worker, the state of each pod that has no container yet."""
    from trainmaster.cli.show import pod_state
    from trainmaster.client import worker_index

    pods = [pod for pod in jobs.pods(name) if (pod.get("status") or {}).get("phase") == "Pending"]
    return {worker_index(pod): f"pod {pod['metadata']['name']} is {pod_state(pod)}" for pod in pods}


def _label(worker: int, workers: int) -> str:
    return "" if workers == 1 else f"[worker {worker}] "


def _follow_all(jobs: JobClient, name: str, workers: list[int], tail: int | None) -> None:
    """Follows the logs of several workers at once: a thread reads each, this one prints, until all have ended."""
    from trainmaster.client import ClientError

    lines: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()

    def read(worker: int) -> None:
        try:
            for line in jobs.logs(name, worker, follow=True, tail=tail):
                lines.put((worker, line))
        except ClientError as error:
            say(f"error: worker {worker}: {error}", error=True)
        finally:
            lines.put((worker, None))

    for worker in workers:
        threading.Thread(target=read, args=(worker,), daemon=True).start()
    left = len(workers)
    while left:
        worker, line = lines.get()
        if line is None:
            left -= 1
        else:
            log_line(line, _label(worker, len(workers)))


def _failure_summary(job: TrainingJob) -> str:
    """Returns which failure ended a failed job; empty for other jobs."""
    if job.phase != "Failed":
        return ""
    ended = next((each for each in job.status.conditions if each.type == "Failed"), None)
    reason = ended.reason if ended is not None else ""
    failure = job.status.failures[0] if job.status.failures else None
    if failure is None or reason not in ("", "MaxRestartsExceeded", failure.reason):
        # What ended the job was no failure of a rank: a deadline, no room, an image.
        return f"{reason}: {ended.message}" if ended is not None and ended.message else reason
    rank = "" if failure.rank is None else f" of rank {failure.rank}"
    code = "" if failure.exit_code is None else f", exit code {failure.exit_code}"
    return f"{failure.reason}{rank}{code}"


def _as_json(job: TrainingJob) -> dict[str, object]:
    return {"namespace": job.namespace, "name": job.name, "phase": job.phase, "status": job.raw.get("status") or {}}


if __name__ == "__main__":
    app()

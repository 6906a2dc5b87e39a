"""`--failed` prints the log of the rank that failed first: from its pod, or from what was kept when the pod went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from trainmaster.cli.logs.printed import kept_or_none
from trainmaster.cli.logs.printing import Printer
from trainmaster.cli.logs.selection import Selection
from trainmaster.cli.logs.sources import of_kept, of_pod
from trainmaster.cli.terminal import say
from trainmaster.client import JobClient, JobNotFound, NotAllowed, TrainingJob, worker_index
from trainmaster.client.containers import has_started
from trainmaster.client.merging import WorkerLine
from trainmaster_operator.api.evidence import AttemptEvidence
from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.wire.values import whole


def print_failed(jobs: JobClient, job: TrainingJob, selection: Selection, printer: Printer) -> None:
    """Prints what is left of the log of the rank that failed first, and on stderr who it was. Raises ClientError."""
    evidence = {one.attempt: one for one in _evidence(jobs, job.name)}
    failure = _failure(job, evidence, selection.attempt)
    if failure is None:
        which = "no attempt has failed" if selection.attempt is None else f"no failure of attempt {selection.attempt}"
        raise JobNotFound(
            f"Job {job.name} is {job.phase}, and {which} is known"
            if selection.attempt is not None
            else f"Job {job.name} is {job.phase}, and {which}"
        )
    attempt = whole(failure.get("attempt")) or 0
    worker, rank = whole(failure.get("worker")), whole(failure.get("rank"))
    say(_who(attempt, failure), error=True)
    if worker is None:
        say(str(failure.get("message") or "It isn't known which worker failed."), error=True)
        return
    own = replace(
        selection,
        workers=frozenset([worker]),
        ranks=None if rank is None else frozenset([rank]),
        attempt=attempt,
    )
    kept = evidence.get(attempt)
    for source, lines in _sources(jobs, job, worker, own, kept):
        for line in lines:
            if not printer.printed and source:
                say(source, error=True)
            printer(line)
        if printer.printed:
            return
    say(f"No line of its log is left. {failure.get('message') or ''}".rstrip(), error=True)


def _sources(
    jobs: JobClient, job: TrainingJob, worker: int, selection: Selection, evidence: AttemptEvidence | None
) -> Iterator[tuple[str, Iterator[WorkerLine]]]:
    """Yields the places where the log may be, the whole one first, with what has to be said of each."""
    for pod in jobs.pods(job.name):
        if worker_index(pod) == worker and has_started(pod):
            yield "", _while_there(of_pod(jobs, job, pod, selection))
    if (log := kept_or_none(jobs, job.name).get(worker)) is not None:
        cut = " It may begin in the middle: only the ends of logs are kept." if log.cut else ""
        yield f"Its pod is gone; this was kept of its log.{cut}", of_kept(job, worker, log, selection)
    if evidence is not None:
        text = evidence.logs.get(worker)
        if text:
            kept = KeptLog(tuple(text.removesuffix("\n").split("\n")), cut=True)
            # All of it is the attempt's, and nothing in it says so.
            own = replace(selection, attempt=None)
            yield "The log is gone; this is its end, from the evidence.", of_kept(job, worker, kept, own)
        error = evidence.workers.get(worker, {}).get("error")
        if isinstance(error, str) and error:
            lines = (WorkerLine(0.0, worker, text) for text in error.splitlines())
            yield "The log is gone; these last lines were reported.", lines


def _while_there(lines: Iterator[WorkerLine]) -> Iterator[WorkerLine]:
    try:
        yield from lines
    except JobNotFound:
        # The pod has gone since it was listed.
        return


def _failure(
    job: TrainingJob, evidence: Mapping[int, AttemptEvidence], attempt: int | None
) -> Mapping[str, Any] | None:
    """Returns the failure of the attempt, or of the newest one that failed, as the status or the evidence has it."""
    known: dict[int, Mapping[str, Any]] = {number: one.failure for number, one in evidence.items()}
    for failure in reversed(job.status.failures):
        known[failure.attempt] = failure.model_dump(by_alias=True, exclude_none=True)
    if attempt is not None:
        return known.get(attempt)
    return known[max(known)] if known else None


def _evidence(jobs: JobClient, name: str) -> list[AttemptEvidence]:
    try:
        return jobs.evidence(name)
    except NotAllowed:
        # Who may read pods' logs needn't be allowed to read ConfigMaps.
        return []


def _who(attempt: int, failure: Mapping[str, Any]) -> str:
    rank = f"rank {failure['rank']}" if failure.get("rank") is not None else ""
    place = [f"{name} {failure[name]}" for name in ("worker", "pod", "node") if failure.get(name) is not None]
    where = f"{rank} ({', '.join(place)})" if rank and place else rank or ", ".join(place)
    code = f", exit code {failure['exitCode']}" if failure.get("exitCode") is not None else ""
    return f"Attempt {attempt} ended with {failure.get('reason', 'a failure')}{f' of {where}' if where else ''}{code}."

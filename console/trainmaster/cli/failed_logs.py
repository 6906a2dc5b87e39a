"""`kubectl dtj logs --failed` prints the log of the rank that failed first, from its pod or the kept output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from trainmaster.cli.evidence import failure_words
from trainmaster.cli.terminal import say
from trainmaster.client import JobNotFound, NotAllowed, TrainingJob, worker_index
from trainmaster.client.blocking import iterate, run
from trainmaster.client.logs import LogReader
from trainmaster.client.merging import WorkerLine
from trainmaster.client.output import has_started, kept_logs_or_none
from trainmaster_operator.api.evidence import AttemptEvidence
from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.wire.values import whole


def print_failed(reader: LogReader, printer: Callable[[WorkerLine], None]) -> None:
    """Prints the remaining log of the rank that failed first, and names the rank on stderr. Raises ClientError."""
    job, selection = reader.job, reader.selection
    try:
        evidence = {one.attempt: one for one in run(reader.output.evidence(job.name))}
    except NotAllowed:
        # Some users may read pods' logs but not ConfigMaps.
        evidence = {}
    failure = _failure(job, evidence, selection.attempt)
    if failure is None:
        if selection.attempt is None:
            raise JobNotFound(f"Job {job.name} is {job.phase}, and no attempt has failed")
        raise JobNotFound(f"Job {job.name} is {job.phase}, and no failure of attempt {selection.attempt} is known")
    attempt = whole(failure.get("attempt")) or 0
    worker, rank = whole(failure.get("worker")), whole(failure.get("rank"))
    say(f"Attempt {attempt} ended with {failure_words(failure)}.", error=True)
    if worker is None:
        say(str(failure.get("message") or "It isn't known which worker failed."), error=True)
        return
    ranks = None if rank is None else frozenset([rank])
    own = replace(selection, workers=frozenset([worker]), ranks=ranks, attempt=attempt)
    for sentence, lines in _sources(replace(reader, selection=own), worker, evidence.get(attempt)):
        first = next(lines, None)
        if first is not None:
            if sentence:
                say(sentence, error=True)
            printer(first)
            for line in lines:
                printer(line)
            return
    say(f"No line of its log is left. {failure.get('message') or ''}".rstrip(), error=True)


def _sources(
    reader: LogReader, worker: int, evidence: AttemptEvidence | None
) -> Iterator[tuple[str, Iterator[WorkerLine]]]:
    """Yields the log's possible sources, the most complete first, each with a description."""
    name = reader.job.name
    for pod in run(reader.output.pods(name)):
        if worker_index(pod) == worker and has_started(pod):
            yield "", _while_there(iterate(reader.of_pod(pod)))
    if (log := run(kept_logs_or_none(reader.output, name)).get(worker)) is not None:
        cut = " It may begin in the middle: only the ends of logs are kept." if log.cut else ""
        yield f"Its pod is gone; this was kept of its log.{cut}", iterate(reader.of_kept(worker, log))
    if evidence is None:
        return
    if text := evidence.logs.get(worker):
        kept = KeptLog(tuple(text.removesuffix("\n").split("\n")), cut=True)
        # All lines of this log belong to the attempt, but no separator shows that.
        own = replace(reader, selection=replace(reader.selection, attempt=None))
        yield "The log is gone; this is its end, from the evidence.", iterate(own.of_kept(worker, kept))
    error = evidence.workers.get(worker, {}).get("error")
    if isinstance(error, str) and error:
        lines = (WorkerLine(0.0, worker, text) for text in error.splitlines())
        yield "The log is gone; these last lines were reported.", lines


def _while_there(lines: Iterator[WorkerLine]) -> Iterator[WorkerLine]:
    # The pod may have been deleted since it was listed.
    with suppress(JobNotFound):
        yield from lines


def _failure(
    job: TrainingJob, evidence: Mapping[int, AttemptEvidence], attempt: int | None
) -> Mapping[str, Any] | None:
    """Returns the failure of the given attempt, or of the newest failed one, from the status or the evidence."""
    known: dict[int, Mapping[str, Any]] = {number: one.failure for number, one in evidence.items()}
    for failure in reversed(job.status.failures):
        known[failure.attempt] = failure.model_dump(by_alias=True, exclude_none=True)
    if attempt is not None:
        return known.get(attempt)
    return known[max(known)] if known else None

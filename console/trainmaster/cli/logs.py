"""`kubectl dtj logs` prints the output of all ranks as one stream; `client.log_reader` reads it.

With `--failed`, it prints the log of the rank that failed first, from its pod or from the kept output.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from trainmaster.cli.arguments import most_workers, require_attempt, require_index
from trainmaster.cli.evidence import failure_words, named_workers
from trainmaster.cli.health import patient
from trainmaster.cli.show import job_trouble, pod_trouble
from trainmaster.cli.terminal import log_line, say, shows_colours
from trainmaster.client import JobClient, JobNotFound, NotAllowed, TrainingJob, worker_index
from trainmaster.client.blocking import iterate, run
from trainmaster.client.log_reader import MAX_MERGED, LogReader, Observer, Selection
from trainmaster.client.output import has_started, kept_logs_or_none
from trainmaster.client.time_order import WorkerLine
from trainmaster.client.view import view_of
from trainmaster_operator.api.evidence import AttemptEvidence
from trainmaster_operator.api.kept_logs import KeptLog, marked_attempt
from trainmaster_operator.api.v1alpha1.names import SUSPENDED_PHASES
from trainmaster_operator.wire.values import whole

# Colour codes (ECMA-48 Select Graphic Rendition), except for black, white and red, which have special meanings.
COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
DIM, BOLD = 2, 1
# Maximum number of workers that a message names.
MAX_NAMED = 8


def print_logs(
    jobs: JobClient,
    job: TrainingJob,
    selection: Selection,
    *,
    prefix: bool | None,
    timestamps: bool,
    failed: bool,
    follow: bool,
) -> None:
    """Prints the selected lines of a job's output. Raises ClientError; JobNotFound for an impossible worker or rank."""
    for worker in selection.workers or ():
        require_index(job, "worker", worker)
    for rank in selection.ranks or ():
        require_index(job, "rank", rank)
    if selection.attempt is not None:
        require_attempt(job, selection.attempt)
    # Without this, urllib3 would warn if many logs need more connections than its pool keeps.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    several = most_workers(job) > 1 and len(selection.workers or ()) != 1 and not failed
    printer = Printer(several, prefix, timestamps, separators=not selection.ranks)
    reader = LogReader((patient(jobs) if follow else jobs).asynchronous, job, selection, _Waiting())
    if failed:
        print_failed(reader, printer)
    else:
        _print(reader, printer, follow=follow)


def attempt_before(job: TrainingJob) -> int:
    """Returns the number of the job's previous attempt. Raises JobNotFound if there is none."""
    if job.status.attempt < 2:
        raise JobNotFound(f"Job {job.name} is in its first attempt: there is no previous one")
    return job.status.attempt - 1


def _print(reader: LogReader, printer: Printer, *, follow: bool) -> None:
    follow_on = follow and not reader.is_over
    with closing(iterate(reader.lines(follow=follow))) as lines:
        for line in lines:
            printer(line)
    if not follow_on:
        _explain(reader, printer, with_end=follow)
    elif reader.job.finished:
        say(view_of(reader.job.raw).end, error=True)


def _explain(reader: LogReader, printer: Printer, *, with_end: bool) -> None:
    """Prints which lines are missing, or why nothing was printed. With `with_end`, also prints how the job ended."""
    job, selection, kept = reader.job, reader.selection, reader.kept
    started = {worker for worker, pod in reader.pods.items() if has_started(pod)}
    gone = {worker: log for worker, log in kept.items() if worker not in started}
    # Pods that still exist contain the first lines, even if the kept output doesn't.
    earlier = gone if job.finished or job.phase in SUSPENDED_PHASES else kept
    if missing := _missing_message(earlier, selection):
        say(missing, error=True)
    is_silent = not printer.printed and selection.tail != 0
    if is_silent and (selection.by_content or selection.since is not None) and (started or kept):
        say(_nothing_message(job, selection), error=True)
    elif is_silent and job.finished and not selection.by_content:
        say(f"{view_of(job.raw).end}\nIt printed nothing that was kept.", error=True)
        return
    elif is_silent and not reader.pods and not kept:
        say(f"Job {job.name} has no output: {job_trouble(job)}", error=True)
    if with_end and job.finished:
        say(view_of(job.raw).end, error=True)


@dataclass
class _Waiting(Observer):
    """_Waiting prints each reason for waiting once, because reasons alternate while an image's pull is retried."""

    _said: defaultdict[int | None, set[str]] = field(default_factory=lambda: defaultdict(set))

    def listed(self, job: TrainingJob, pods: Sequence[Mapping[str, Any]], *, is_idle: bool) -> None:
        waiting: dict[int | None, str] = {}
        for pod in pods:
            worker = worker_index(pod)
            if has_started(pod):
                self._said.pop(worker, None)
            else:
                name = pod["metadata"]["name"]
                waiting[worker] = f"Worker {worker} has no output yet: pod {name} is {pod_trouble(pod)}."
        if pods:
            self._said.pop(None, None)
        elif is_idle:
            waiting[None] = f"Job {job.name} has no pods: {job_trouble(job)}"
        new = {each: text for each, text in waiting.items() if text not in self._said[each]}
        for each, text in new.items():
            self._said[each].add(text)
        for text in list(new.values())[:MAX_NAMED]:
            say(text, error=True)
        if len(new) > MAX_NAMED:
            say(f"... and {len(new) - MAX_NAMED} more workers.", error=True)

    def too_many(self, logs: int) -> None:
        say(
            f"Lines of {logs} workers are too many to merge: those of {MAX_MERGED} workers come before those of the "
            "next; choose some with --worker or --rank.",
            error=True,
        )


def _missing_message(kept: Mapping[int, KeptLog], selection: Selection) -> str:
    """Returns a message about missing first lines. It is empty if no requested lines are missing."""
    cut = [worker for worker, log in kept.items() if log.cut and not _begins_in(log, selection.attempt)]
    if not cut or selection.tail is not None or selection.since is not None:
        return ""
    who = "any worker" if len(cut) == len(kept) > 1 else named_workers(cut)
    return f"The first lines of {who} aren't there: only the ends of logs are kept when the pods go."


def _begins_in(log: KeptLog, attempt: int | None) -> bool:
    """Returns whether the missing lines belong only to attempts before the selected one."""
    marks = map(marked_attempt, log.lines)
    return attempt is not None and any(begins is not None and begins <= attempt for begins in marks)


def _nothing_message(job: TrainingJob, selection: Selection) -> str:
    ranks = "" if selection.ranks is None else f" of rank {' or '.join(map(str, sorted(selection.ranks)))}"
    attempt = "" if selection.attempt is None else f" of attempt {selection.attempt}"
    since = "" if selection.since is None else " of that time"
    if selection.attempt is not None and selection.attempt < job.status.attempt:
        return (
            f"Nothing{ranks}{attempt} is left: the logs of its containers are gone; what was kept of an attempt that "
            f"failed is shown by --failed --attempt {selection.attempt}."
        )
    return f"Job {job.name} has no output{ranks}{attempt}{since}."


@dataclass
class Printer:
    """Printer prints and counts lines. If several logs contain an attempt's beginning, it is printed once."""

    several: bool = True
    """Whether lines of several workers are printed, so that each line needs a label."""
    prefix: bool | None = None
    """True: label every line with its worker; False: no labels; None: only the labels that are needed."""
    timestamps: bool = False
    separators: bool = True
    """Whether the beginnings of attempts are printed."""
    printed: int = field(default=0, init=False)
    _coloured: bool = field(default_factory=lambda: shows_colours(), init=False)
    _separated: int = field(default=0, init=False)

    def __call__(self, line: WorkerLine) -> None:
        """Prints a line. Raises BrokenPipeError."""
        begins = line.separates
        if begins is not None:
            if not self.separators or (self.several and self.prefix is None and begins <= self._separated):
                return
            self._separated = max(self._separated, begins)
        self.printed += 1
        label, text = self._labelled(line, begins)
        if self.timestamps and line.time:
            time = datetime.fromtimestamp(line.time, UTC).isoformat(timespec="milliseconds")
            label = time.replace("+00:00", "Z ") + label
        log_line(text, label)

    def _labelled(self, line: WorkerLine, begins: int | None) -> tuple[str, str]:
        own = "" if begins is not None else line.label
        text = line.text[len(own) :]
        if self.prefix is False:
            return "", text
        if self.prefix is None and begins is not None and self.several:
            return "", self._colour(text, BOLD)
        shows_worker = self.prefix or (not own and self.several)
        worker = self._colour(f"[worker {line.worker}] ", DIM) if shows_worker else ""
        if own and self._coloured:
            # Each rank has its own colour in a terminal.
            own = self._colour(own, DIM if (rank := line.rank) is None else COLOURS[rank % len(COLOURS)])
        return worker + own, text

    def _colour(self, text: str, code: int) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._coloured and text else text


def print_failed(reader: LogReader, printer: Callable[[WorkerLine], None]) -> None:
    """Prints what is left of the log of the rank that failed first; names the rank on stderr. Raises ClientError."""
    job, selection = reader.job, reader.selection
    try:
        evidence = {one.attempt: one for one in run(reader.output.evidence(job.name))}
    except NotAllowed:
        # The evidence is in ConfigMaps. Some users may read pods' logs, but no ConfigMaps.
        evidence = {}
    failure = _failure(job, evidence, selection.attempt)
    if failure is None:
        number = selection.attempt
        which = "no attempt has failed" if number is None else f"no failure of attempt {number} is known"
        raise JobNotFound(f"Job {job.name} is {job.phase}, and {which}")
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

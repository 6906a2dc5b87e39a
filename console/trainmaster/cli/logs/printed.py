"""What there is of a job's output is printed once: what was kept of pods that are gone, and then what the pods have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from trainmaster.cli.logs.merging import merged
from trainmaster.cli.logs.printing import Printer
from trainmaster.cli.logs.selection import Selection
from trainmaster.cli.logs.sources import of_kept, of_pod, waiting_sentence
from trainmaster.cli.show import job_trouble
from trainmaster.cli.terminal import say
from trainmaster.client import JobClient, JobNotFound, NotAllowed, TrainingJob, worker_index
from trainmaster.client.containers import has_started
from trainmaster.client.merging import WorkerLine
from trainmaster.client.view import view_of
from trainmaster_operator.api.kept_logs import KeptLog, marked_attempt

# Logs that are merged at once; of more workers, the output of so many comes before that of the next.
MAX_MERGED = 128
# Workers that are named one by one.
MAX_NAMED = 8


def print_there(
    jobs: JobClient, job: TrainingJob, selection: Selection, printer: Printer, *, with_end: bool = False
) -> None:
    """Prints what there is of the output that is wanted, and says why there is none. Raises ClientError.

    `with_end`: also says how the job has ended.
    """
    pods = {worker_index(pod): pod for pod in jobs.pods(job.name) if selection.wants(worker_index(pod))}
    all_kept = kept_or_none(jobs, job.name) if pods else jobs.kept_logs(job.name)
    kept = {worker: log for worker, log in all_kept.items() if selection.wants(worker)}
    waiting = {worker: pod for worker, pod in pods.items() if not has_started(pod)}
    say_each([waiting_sentence(worker, pod) for worker, pod in waiting.items()])
    there = {worker: pod for worker, pod in pods.items() if worker not in waiting}
    streams = [_of_pod(jobs, job, pod, selection, kept.get(worker)) for worker, pod in there.items()]
    gone = {worker: log for worker, log in kept.items() if worker not in there}
    streams += [of_kept(job, worker, log, selection) for worker, log in gone.items()]
    print_merged(streams, printer)
    # Where pods may outlive what was kept of them, they have their first lines themselves.
    earlier = gone if job.finished or job.phase == "Suspended" else kept
    if missing := missing_sentence(earlier, selection):
        say(missing, error=True)
    silent = not printer.printed and selection.tail != 0
    if silent and (selection.by_content or selection.since is not None) and (there or kept):
        say(nothing_sentence(job, selection), error=True)
    elif silent and job.finished and not selection.by_content:
        say(f"{view_of(job.raw).end}\nIt printed nothing that was kept.", error=True)
        return
    elif silent and not pods and not kept:
        say(f"Job {job.name} has no output: {job_trouble(job)}", error=True)
    if with_end and job.finished:
        say(view_of(job.raw).end, error=True)


def print_merged(streams: Sequence[Iterator[WorkerLine]], printer: Printer) -> None:
    """Prints streams by the time of their lines."""
    if len(streams) > MAX_MERGED:
        say(
            f"Lines of {len(streams)} workers are too many to merge: those of {MAX_MERGED} workers come before those "
            "of the next; choose some with --worker or --rank.",
            error=True,
        )
    for first in range(0, len(streams), MAX_MERGED):
        for line in merged(streams[first : first + MAX_MERGED]):
            printer(line)


def say_each(sentences: Sequence[str]) -> None:
    """Says sentences of several workers, of many only the first ones."""
    for sentence in sentences[:MAX_NAMED]:
        say(sentence, error=True)
    if len(sentences) > MAX_NAMED:
        say(f"... and {len(sentences) - MAX_NAMED} more workers.", error=True)


def missing_sentence(kept: Mapping[int, KeptLog], selection: Selection) -> str:
    """Returns of which workers the first lines weren't kept; empty where they were, or nobody asked for them."""
    cut = [worker for worker, log in kept.items() if log.cut and not _begins_in(log, selection.attempt)]
    if not cut or selection.tail is not None or selection.since is not None:
        return ""
    if len(cut) == len(kept) and len(cut) > 1:
        who = "any worker"
    else:
        names = ", ".join(map(str, cut[:MAX_NAMED])) + (", ..." if len(cut) > MAX_NAMED else "")
        who = f"worker{'' if len(cut) == 1 else 's'} {names}"
    return f"The first lines of {who} aren't there: only the ends of logs are kept when the pods go."


def _begins_in(log: KeptLog, attempt: int | None) -> bool:
    """Returns whether the lines that are missing are of earlier attempts than the one that is wanted."""
    marks = map(marked_attempt, log.lines)
    return attempt is not None and any(begins is not None and begins <= attempt for begins in marks)


def nothing_sentence(job: TrainingJob, selection: Selection) -> str:
    """Returns that what is there has none of the lines that are wanted."""
    ranks = "" if selection.ranks is None else f" of rank {' or '.join(map(str, sorted(selection.ranks)))}"
    attempt = "" if selection.attempt is None else f" of attempt {selection.attempt}"
    since = "" if selection.since is None else " of that time"
    if selection.attempt is not None and selection.attempt < job.status.attempt:
        return (
            f"Nothing{ranks}{attempt} is left: the logs of its containers are gone; what was kept of an attempt that "
            f"failed is shown by --failed --attempt {selection.attempt}."
        )
    return f"Job {job.name} has no output{ranks}{attempt}{since}."


def kept_or_none(jobs: JobClient, name: str) -> dict[int, KeptLog]:
    """Returns what was kept, nothing for those who may read pods' logs and no ConfigMaps."""
    try:
        return jobs.kept_logs(name)
    except NotAllowed:
        return {}


def _of_pod(
    jobs: JobClient, job: TrainingJob, pod: Mapping[str, Any], selection: Selection, kept: KeptLog | None
) -> Iterator[WorkerLine]:
    """Yields a worker's output, as it was kept when its pod has gone since it was listed."""
    lines = of_pod(jobs, job, pod, selection, kept)
    try:
        first = next(lines, None)
    except JobNotFound:
        worker = worker_index(pod)
        log = kept_or_none(jobs, job.name).get(worker)
        lines, first = (of_kept(job, worker, log, selection) if log else iter(())), None
    yield from lines if first is None else chain([first], lines)

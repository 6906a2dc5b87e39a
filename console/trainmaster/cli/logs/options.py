"""The options of `kubectl dtj logs` become a selection of lines and a way to print them."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass

from trainmaster.cli.arguments import most_workers, require_attempt, require_rank, require_worker
from trainmaster.cli.logs.failed import print_failed
from trainmaster.cli.logs.following import Follower
from trainmaster.cli.logs.printed import print_there
from trainmaster.cli.logs.printing import Printer, Style
from trainmaster.cli.logs.selection import Selection
from trainmaster.client import JobClient, JobNotFound, TrainingJob


@dataclass(frozen=True)
class LogOptions:
    """LogOptions are the options as they were given."""

    workers: Collection[int] = ()
    ranks: Collection[int] = ()
    attempt: int | None = None
    previous: bool = False
    failed: bool = False
    since_seconds: float | None = None
    tail: int | None = None
    follow: bool = False
    timestamps: bool = False
    prefix: bool | None = None


def print_logs(jobs: JobClient, job: TrainingJob, options: LogOptions) -> None:
    """Prints what is wanted of a job's output. Raises ClientError; JobNotFound for what the job can't have."""
    for worker in options.workers:
        require_worker(job, worker)
    for rank in options.ranks:
        require_rank(job, rank)
    # Many logs are read at once; that some of the connections aren't kept for later is no news.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    attempt = _attempt(job, options)
    selection = Selection(
        workers=frozenset(options.workers) if options.workers else None,
        ranks=frozenset(options.ranks) if options.ranks else None,
        attempt=attempt,
        since=None if options.since_seconds is None else time.time() - options.since_seconds,
        tail=options.tail,
    )
    several = max(job.status.workers.desired, most_workers(job)) > 1 and len(options.workers) != 1
    printer = Printer(Style(several and not options.failed, options.prefix, options.timestamps, not options.ranks))
    if options.failed:
        print_failed(jobs, job, selection, printer)
    elif options.follow:
        Follower(jobs, job, selection, printer).run()
    else:
        print_there(jobs, job, selection, printer)


def _attempt(job: TrainingJob, options: LogOptions) -> int | None:
    """Returns the attempt that is wanted; None for all. Raises JobNotFound for one that there wasn't."""
    if options.previous:
        if job.status.attempt < 2:
            raise JobNotFound(f"Job {job.name} is in its first attempt: there is no previous one")
        return job.status.attempt - 1
    if options.attempt is not None:
        require_attempt(job, options.attempt)
    return options.attempt

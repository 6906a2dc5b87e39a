"""A job has so many workers, ranks and attempts. Who asks for another one is refused, with those that there are."""

from __future__ import annotations

from typing import Any

from trainmaster.client import JobNotFound, TrainingJob


def require_worker(job: TrainingJob, worker: int) -> None:
    """Raises JobNotFound for a worker that the job can't have."""
    _require(job, "worker", worker, most_workers(job))


def require_rank(job: TrainingJob, rank: int) -> None:
    """Raises JobNotFound for a rank that the job can't have."""
    _require(job, "rank", rank, _most_ranks(job))


def require_attempt(job: TrainingJob, attempt: int) -> None:
    """Raises JobNotFound for an attempt that there wasn't."""
    newest = job.status.attempt
    if attempt > newest:
        there = f"its newest is {newest}" if newest else "none has begun"
        raise JobNotFound(f"Job {job.name} has no attempt {attempt}: {there}")


def most_workers(job: TrainingJob) -> int:
    """Returns how many workers the job can have, spares too; 0 where that isn't known."""
    spec: Any = job.raw.get("spec") or {}
    elastic = spec.get("elastic")
    sizes = [job.status.workers.desired, spec.get("workers"), elastic.get("maxWorkers") if elastic else None]
    most = max((size for size in sizes if isinstance(size, int)), default=0)
    if most:
        # A spare's output is a worker's as soon as it has taken a worker's place.
        most += sum(group.get("spares") or 0 for group in (spec, *(spec.get("workerGroups") or ())))
    return most


def _most_ranks(job: TrainingJob) -> int:
    """Returns how many ranks the job can have; 0 where that isn't known."""
    # They take a tenth of a second, and most commands name no rank.
    from trainmaster_operator.api.parsing import InvalidJob, parse_spec
    from trainmaster_operator.api.v1alpha1 import JobIdentity
    from trainmaster_operator.rendering import worker_layout, world_size

    try:
        spec = parse_spec(job.raw.get("spec"), job.name)
    except InvalidJob:
        # Of another release, or refused by the operator.
        return 0
    layout = worker_layout(JobIdentity(job.namespace, job.name, job.uid), spec)
    if len(layout) > 1:
        return world_size(layout)
    most = max(layout[0].count, job.status.workers.desired, spec.elastic.max_workers if spec.elastic else 0)
    return most * layout[0].processes


def _require(job: TrainingJob, kind: str, index: int, most: int) -> None:
    if 0 < most <= index:
        there = f"{kind} 0 alone" if most == 1 else f"{kind}s 0 to {most - 1}"
        raise JobNotFound(f"Job {job.name} has no {kind} {index}: it has {there}")

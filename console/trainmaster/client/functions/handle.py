"""`JobHandle` is one job of a program or a notebook, which shows what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainmaster.client.errors import ClientError
from trainmaster.client.job import TrainingJob
from trainmaster.client.jobs import JobClient
from trainmaster.client.metrics import JobMetrics
from trainmaster_operator.api.v1alpha1 import JobStatus


class JobHandle:
    """JobHandle has the methods of `JobClient` for one job. A notebook shows it as a table."""

    def __init__(self, jobs: JobClient, name: str) -> None:
        self.jobs = jobs
        self.name = name

    @property
    def job(self) -> TrainingJob:
        """Returns the job as it is now. Raises JobNotFound."""
        return self.jobs.get(self.name)

    @property
    def status(self) -> JobStatus:
        """Returns the job's status now. Raises JobNotFound."""
        return self.job.status

    def wait(self, timeout: float | None = None) -> TrainingJob:
        """Waits until the job has ended, and returns it. Raises WaitTimeout."""
        return self.jobs.wait(self.name, timeout=timeout)

    def watch(self) -> Iterator[TrainingJob]:
        """Yields the job now and at every change, until it is deleted."""
        return self.jobs.watch(self.name)

    def logs(self, worker: int | None = None, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """Yields a worker's output line by line, or that of all workers by time. Raises JobNotFound."""
        return self.jobs.logs(self.name, worker, follow=follow, tail=tail)

    def metrics(self) -> JobMetrics:
        """Returns what each rank says now."""
        return self.jobs.metrics(self.name)

    def restart(self) -> TrainingJob:
        """Starts all ranks anew in their pods, from a checkpoint."""
        return self.jobs.restart(self.name)

    def delete(self) -> None:
        """Deletes the job and all that belongs to it."""
        self.jobs.delete(self.name)

    def __repr__(self) -> str:
        return f"JobHandle({self.name!r}, namespace={self.jobs.namespace!r})"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        try:
            return self.job._repr_mimebundle_(include, exclude)
        except ClientError as error:
            return {"text/plain": str(error)}

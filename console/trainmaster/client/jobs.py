"""`JobClient` submits, watches and steers DistributedTrainingJobs from Python.

from trainmaster.client import JobClient

jobs = JobClient()
jobs.submit(manifest)
status = jobs.wait("bert-mrpc", timeout=3600)
print(status.phase, status.progress)

What the methods do stands once, in `AsyncJobClient`; here it runs without an event loop (`blocking`).
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainmaster.client.async_jobs import FIELD_MANAGER, AsyncJobClient
from trainmaster.client.blocking import Blocking, iterate, run
from trainmaster.client.job import TrainingJob, require_name, worker_index
from trainmaster.client.metrics import JobMetrics
from trainmaster.client.transport import Transport, connect
from trainmaster_operator.api.evidence import AttemptEvidence
from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.api.stacks import Stacks

__all__ = ["FIELD_MANAGER", "JobClient", "TrainingJob", "require_name", "worker_index"]


class JobClient:
    """JobClient reads and changes the jobs of one namespace.

    Threads may share it. Every method raises a ClientError with one sentence.
    """

    def __init__(
        self,
        namespace: str | None = None,
        *,
        kubeconfig: str | os.PathLike[str] | None = None,
        context: str | None = None,
        transport: Transport | None = None,
    ) -> None:
        if transport is None:
            transport, context_namespace = connect(kubeconfig, context)
            namespace = namespace or context_namespace
        self.transport = transport
        self._jobs = AsyncJobClient(namespace, transport=Blocking(transport))
        self.namespace = self._jobs.namespace

    def submit(self, manifest: Mapping[str, Any], *, replace: bool = False) -> TrainingJob:
        """Creates a job; with `replace`, applies it (server-side). Raises JobExists, InvalidRequest."""
        return run(self._jobs.submit(manifest, replace=replace))

    def get(self, name: str) -> TrainingJob:
        """Returns one job. Raises JobNotFound."""
        return run(self._jobs.get(name))

    def list(self, *, all_namespaces: bool = False, selector: str | None = None) -> list[TrainingJob]:
        """Returns all jobs of the namespace, or of all namespaces, by name; of `selector`, those with such labels."""
        return run(self._jobs.list(all_namespaces=all_namespaces, selector=selector))

    def delete(self, name: str) -> None:
        """Deletes a job and, through the garbage collector, all that belongs to it."""
        run(self._jobs.delete(name))

    def suspend(self, name: str) -> TrainingJob:
        """Stops a job with a checkpoint and frees its resources. Raises InvalidRequest for one that has ended."""
        return run(self._jobs.suspend(name))

    def resume(self, name: str) -> TrainingJob:
        """Lets a suspended job go on. Raises InvalidRequest for one that has ended."""
        return run(self._jobs.resume(name))

    def scale(self, name: str, workers: int) -> TrainingJob:
        """Asks for another number of workers."""
        return run(self._jobs.scale(name, workers))

    def restart(self, name: str) -> TrainingJob:
        """Starts all ranks anew in their pods, from a checkpoint. Raises InvalidRequest for a job that has ended."""
        return run(self._jobs.restart(name))

    def merge(self, name: str, patch: Mapping[str, Any]) -> TrainingJob:
        """Changes a job by a merge patch."""
        return run(self._jobs.merge(name, patch))

    def watch(self, name: str) -> Iterator[TrainingJob]:
        """Yields the job now and at every change, until it is deleted. A watch that breaks is opened again."""
        return iterate(self._jobs.watch(name))

    def watch_all(
        self, *, all_namespaces: bool = False, selector: str | None = None
    ) -> Iterator[tuple[TrainingJob, bool]]:
        """Yields all jobs now, then each one that changes or is deleted, for ever; True stands beside a deleted one."""
        return iterate(self._jobs.watch_all(all_namespaces=all_namespaces, selector=selector))

    def wait(
        self,
        name: str,
        *,
        until: Callable[[TrainingJob], bool] = lambda job: job.finished,
        timeout: float | None = None,
    ) -> TrainingJob:
        """Waits until a job has ended, or `until` holds, and returns the job.

        Raises WaitTimeout after `timeout` seconds and JobNotFound when the job is deleted meanwhile.
        """
        return run(self._jobs.wait(name, until=until, timeout=timeout))

    def metrics(self, name: str) -> JobMetrics:
        """Returns what each rank says now: step, loss, samples a second, seconds of a step. Raises JobNotFound."""
        return run(self._jobs.metrics(name))

    def pods(self, name: str) -> builtins.list[Mapping[str, Any]]:
        """Returns the job's pods as raw objects, by worker. Pods with its label but no index are left out."""
        return run(self._jobs.pods(name))

    def logs(
        self, name: str, worker: int | None = None, *, follow: bool = False, tail: int | None = None
    ) -> Iterator[str]:
        """Yields a worker's output line by line, or that of all workers by time. Raises JobNotFound.

        With several workers, each line begins with its rank's or its worker's label. What was kept is there after the
        pods are gone. `follow` waits for further lines until the job has ended. `tail`: only the last lines of each
        worker.
        """
        return iterate(self._jobs.logs(name, worker, follow=follow, tail=tail))

    def pod_log(
        self,
        pod: str,
        *,
        follow: bool = False,
        tail: int | None = None,
        previous: bool = False,
        timestamps: bool = False,
        since: float | None = None,
    ) -> Iterator[str]:
        """Yields the log of a worker's container line by line, or of the container before. Raises JobNotFound.

        InvalidRequest where the container has not started. A log that is followed ends with its container, or where the
        connection breaks. With `timestamps` each line begins with its time (api/stamped_lines.py). `since`: no lines
        before that second (since the epoch).
        """
        return iterate(
            self._jobs.pod_log(pod, follow=follow, tail=tail, previous=previous, timestamps=timestamps, since=since)
        )

    def kept_workers(self, name: str) -> builtins.list[int]:
        """Returns the workers whose output the operator kept when the job ended."""
        return run(self._jobs.kept_workers(name))

    def stacks(self, name: str, *, timeout: float = 15.0) -> Stacks:
        """Asks all ranks of a running job for their stacks, stops none, and returns what they answer.

        Raises InvalidRequest where no ranks run, and WaitTimeout after `timeout` seconds.
        """
        return run(self._jobs.stacks(name, timeout=timeout))

    def kept_logs(self, name: str) -> dict[int, KeptLog]:
        """Returns what the operator kept of the workers' output when their pods went, by worker."""
        return run(self._jobs.kept_logs(name))

    def events(self, *, all_namespaces: bool = False) -> builtins.list[Mapping[str, Any]]:
        """Returns the raw Events of the namespace, or of all: those of anything, not only of jobs."""
        return run(self._jobs.events(all_namespaces=all_namespaces))

    def watch_events(self, *, all_namespaces: bool = False) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yields the raw Events that there are as ADDED, then each that is added or changed, for ever."""
        return iterate(self._jobs.watch_events(all_namespaces=all_namespaces))

    def evidence(self, name: str) -> builtins.list[AttemptEvidence]:
        """Returns the evidence of the attempts that failed, oldest first; also after the pods are gone."""
        return run(self._jobs.evidence(name))

    def history(
        self, name: str, *, uid: str | None = None, history: str | None = None, token: str | None = None
    ) -> dict[str, builtins.list[Any]]:
        """Returns a job's recorded curves as columns (docs/history-exports.md), also of one that is gone.

        Raises JobNotFound for one that wasn't recorded.
        `uid` names an earlier job of that name, `history` the address of a history that isn't the cluster's, and
        `token` what it knows you by, where the kubeconfig has none.
        """
        return run(self._jobs.history(name, uid=uid, history=history, token=token))

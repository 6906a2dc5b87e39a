"""`run_locally` trains on this machine by the call that trains on a cluster, and leaves nothing running."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from trainmaster.client import InvalidRequest, JobClient, JobNotFound, TrainingJob, TrainOptions, WaitTimeout, train
from trainmaster.local.running import RunningCluster, running_cluster

# Between two looks at whether the operator runs.
LOOK_SECONDS = 5.0


@dataclass(frozen=True)
class FinishedJob:
    """FinishedJob is a job that has ended, and what its workers printed, line by line."""

    job: TrainingJob
    logs: Mapping[int, tuple[str, ...]]

    @property
    def succeeded(self) -> bool:
        """Returns whether the job did what it should."""
        return self.job.phase == "Succeeded"


def run_locally(
    work: Callable[..., Any] | Mapping[str, Any],
    *,
    timeout: float | None = None,
    node_gpus: int | None = None,
    **options: Unpack[TrainOptions],
) -> FinishedJob:
    """Trains a function (with the options of `train`) or a job's manifest on an embedded cluster, and returns the end.

    Cluster and operator run for this call only. Its node has this machine's GPUs, or as many as `node_gpus`.
    Raises what `train` and `submit` raise, and WaitTimeout when the job hasn't ended after `timeout` seconds.

    >>> def fit(steps: int) -> None:
    ...     import os
    ...
    ...     print("rank", os.environ["RANK"], "does", steps, "steps")
    >>> done = run_locally(fit, workers=2, arguments={"steps": 10}, spec={"processesPerWorker": 1})
    >>> done.succeeded
    True
    >>> done.logs[1][-1]
    '[rank 1]: rank 1 does 10 steps'
    """
    if isinstance(work, Mapping) and options:
        raise InvalidRequest(f"{', '.join(options)}: a manifest says it itself; write it there")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="trainmaster-run-"))
        cluster = stack.enter_context(running_cluster(Path(folder), gpus=node_gpus))
        jobs = JobClient(kubeconfig=str(cluster.kubeconfig))
        name = jobs.submit(work).name if isinstance(work, Mapping) else train(work, jobs=jobs, **options).name
        job = _ended(cluster, jobs, name, timeout)
        return FinishedJob(job, {worker: _log(jobs, name, worker) for worker in range(job.status.workers.desired)})


def _log(jobs: JobClient, name: str, worker: int) -> tuple[str, ...]:
    try:
        return tuple(jobs.logs(name, worker))
    except JobNotFound:
        # The job keeps none, or its pods never ran.
        return ()


def _ended(cluster: RunningCluster, jobs: JobClient, name: str, timeout: float | None) -> TrainingJob:
    """Waits for the end, as long as there is an operator that could bring it about."""
    left = timeout
    while True:
        seconds = LOOK_SECONDS if left is None else min(left, LOOK_SECONDS)
        try:
            return jobs.wait(name, timeout=seconds)
        except WaitTimeout as error:
            cluster.require_operator()
            left = None if left is None else left - seconds
            if left is not None and left <= 0:
                raise WaitTimeout(f"Job {name} is {error.phase} after {timeout:g} s.", error.phase) from error

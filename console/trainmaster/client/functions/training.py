"""`train` makes a job from a function and submits it; `JobHandle` is the job, for a program or a notebook."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypedDict, Unpack

from trainmaster.client.code import archive_files, submit_with_code
from trainmaster.client.errors import ClientError, InvalidRequest
from trainmaster.client.functions.source import SCRIPT, bundle
from trainmaster.client.job import TrainingJob, require
from trainmaster.client.jobs import JobClient
from trainmaster.client.metrics import JobMetrics
from trainmaster_operator.api.v1alpha1 import API_VERSION, DEFAULT_IMAGE, KIND, JobStatus

# Length limit of the function's part of a job's name, in characters.
_MAX_NAME = 40


class TrainOptions(TypedDict, total=False):
    """TrainOptions contains the function's arguments and the settings of its job."""

    # Arguments by name: None, True, False, finite numbers, text, and lists and mappings of these.
    arguments: Mapping[str, Any]
    workers: int
    # GPUs per worker.
    gpus: int
    image: str
    # Statements that precede the function: "import torch\nfrom pathlib import Path".
    imports: str
    # The job's name. By default, it consists of the function's name and a few random letters.
    name: str
    # Further fields of the job's spec; they override the other options.
    spec: Mapping[str, Any]


def train(function: Callable[..., Any], *, jobs: JobClient | None = None, **options: Unpack[TrainOptions]) -> JobHandle:
    """Submits a job whose ranks call the function, each with the same arguments.

    Only the source is sent, so the function must import its modules and receive its values as arguments. The default
    for `jobs` is a client for the current context's namespace. If the function can't run alone, raises InvalidRequest
    before anything is submitted. `JobClient.submit` can raise further errors.

    >>> def fit(steps: int) -> None:
    ...     import torch.distributed as dist
    ...
    ...     dist.init_process_group("gloo")
    ...     print(f"rank {dist.get_rank()} of {dist.get_world_size()} does {steps} steps")
    ...     dist.destroy_process_group()
    >>> job = train(fit, workers=2, arguments={"steps": 10}, name="fit", spec={"processesPerWorker": 1})
    >>> job.wait(timeout=120).phase
    'Succeeded'
    >>> [line for line in job.logs(worker=1) if "of 2" in line]
    ['[rank 1]: rank 1 of 2 does 10 steps']
    >>> job.delete()
    """
    _check(jobs, options)
    files = bundle(function, options.get("arguments", {}), options.get("imports", ""))
    name = options.get("name") or _name(function)
    spec: dict[str, Any] = {"image": options.get("image", DEFAULT_IMAGE), "command": ["python3", SCRIPT]}
    spec["workers"] = options.get("workers", 1)
    if options.get("gpus"):
        spec["resources"] = {"gpus": options["gpus"]}
    spec |= options.get("spec", {})
    manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}
    jobs = jobs or JobClient()
    return JobHandle(jobs, submit_with_code(jobs, manifest, archive_files(files)).name)


def _check(jobs: object, options: Mapping[str, Any]) -> None:
    known = TrainOptions.__annotations__
    if unknown := [option for option in options if option not in known]:
        raise InvalidRequest(f"{', '.join(unknown)}: train has no such option; it has {', '.join(known)}")
    if jobs is not None:
        require("jobs", jobs, JobClient, "a JobClient")
    require("arguments", options.get("arguments", {}), Mapping, "them by name, such as {'steps': 10}")
    require("imports", options.get("imports", ""), str, "import statements as text, such as 'import torch'")
    require("spec", options.get("spec", {}), Mapping, "more fields of the job's spec as a mapping")


def _name(function: Callable[..., Any]) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", getattr(function, "__name__", "").lower()).strip("-")[:_MAX_NAME].rstrip("-")
    stem = words if words[:1].isalpha() else f"train-{words}".rstrip("-")
    return f"{stem}-{secrets.token_hex(3)}"


class JobHandle:
    """JobHandle provides `JobClient`'s methods for one job. Notebooks show it as a table, which `live` updates."""

    def __init__(self, jobs: JobClient, name: str) -> None:
        self.jobs = jobs
        self.name = name

    @property
    def job(self) -> TrainingJob:
        """Returns the job's current state. Raises JobNotFound."""
        return self.jobs.get(self.name)

    @property
    def status(self) -> JobStatus:
        """Returns the job's current status. Raises JobNotFound."""
        return self.job.status

    def wait(self, timeout: float | None = None) -> TrainingJob:
        """Waits until the job has ended, and returns it. Raises WaitTimeout."""
        return self.jobs.wait(self.name, timeout=timeout)

    def watch(self) -> Iterator[TrainingJob]:
        """Yields the job's state, then each change, until the job is deleted."""
        return self.jobs.watch(self.name)

    def logs(self, worker: int | None = None, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """Yields the output of one worker line by line, or of all workers sorted by time. Raises JobNotFound."""
        return self.jobs.logs(self.name, worker, follow=follow, tail=tail)

    def metrics(self) -> JobMetrics:
        """Returns each rank's current figures."""
        return self.jobs.metrics(self.name)

    def restart(self) -> TrainingJob:
        """Restarts all ranks in their pods, from a checkpoint."""
        return self.jobs.restart(self.name)

    def delete(self) -> None:
        """Deletes the job and everything that belongs to it."""
        self.jobs.delete(self.name)

    def __repr__(self) -> str:
        return f"JobHandle({self.name!r}, namespace={self.jobs.namespace!r})"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        try:
            return self.job._repr_mimebundle_(include, exclude)
        except ClientError as error:
            return {"text/plain": str(error)}

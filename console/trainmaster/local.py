"""Runs an embedded cluster (`trainmaster-local`) and the operator on this machine while a program needs them.

`running_cluster` starts both and always stops them. `trainmaster demo` and `run_locally` call it. `run_locally` trains
a function or a job's manifest there, and returns the ended job. `configure` adds Trainmaster's images to the cluster.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Unpack

from trainmaster.client import (
    ClientError,
    HttpTransport,
    InvalidRequest,
    JobClient,
    JobNotFound,
    TrainingJob,
    TrainOptions,
    WaitTimeout,
    find_server,
    train,
)
from trainmaster_operator.api.v1alpha1 import GROUP, PLURAL

if TYPE_CHECKING:
    from trainmaster_local.config import ClusterConfig

OPERATOR_STOP_SECONDS = 10.0
ESTABLISHED_SECONDS = 20.0
POLL_SECONDS = 0.02
# Seconds between two checks that the operator is running.
CHECK_SECONDS = 5.0
# `trainmaster_local.cluster.up` calls `configure` by this name in the cluster's process.
CONFIGURE = f"{__name__}:configure"
# The trainer image contains these scripts in /opt/trainmaster/examples. Elsewhere only a checkout contains them.
EXAMPLE_SCRIPTS = Path(__file__).parents[2] / "images" / "trainer" / "examples"


class NotRunning(ClientError):
    """The cluster or the operator can't be started, or has ended. The message states the reason and the remedy."""


@dataclass(frozen=True)
class RunningCluster:
    """RunningCluster is a cluster with its operator. Its API server answered `start_seconds` after the start."""

    kubeconfig: Path
    server: str
    operator: subprocess.Popen[bytes]
    operator_log: Path
    start_seconds: float


@dataclass(frozen=True)
class FinishedJob:
    """FinishedJob is a job that has ended, with the lines that each worker printed."""

    job: TrainingJob
    logs: Mapping[int, tuple[str, ...]]

    @property
    def succeeded(self) -> bool:
        return self.job.phase == "Succeeded"


def configure(config: ClusterConfig) -> ClusterConfig:
    """Adds Trainmaster's images, and the environment variable that names the agents' hosts file.

    The trainer image's agent is built into the cluster's state folder.
    """
    from trainmaster_local.config import Image
    from trainmaster_operator.agent.build import zipapp_bytes
    from trainmaster_operator.rendering.agent_source import BUNDLED_AGENT

    agent = config.state_dir / "images" / "agent.pyz"
    # The cluster would create the folder with the same mode, for its owner only.
    config.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    agent.parent.mkdir(exist_ok=True)
    temporary = agent.with_suffix(".tmp")
    temporary.write_bytes(zipapp_bytes())
    temporary.replace(agent)
    image = Image(
        patterns=("ghcr.io/trainmaster/*", "docker.io/trainmaster/*", "trainmaster.dev/*"),
        paths={BUNDLED_AGENT: agent, "/opt/trainmaster/examples": EXAMPLE_SCRIPTS},
        command=("python3",),
    )
    return replace(config, images=(*config.images, image), hosts_variable="TRAINMASTER_HOSTS_FILE")


@contextmanager
def local_cluster() -> Iterator[ModuleType]:
    """Yields the module that starts and stops clusters, from an optional distribution. Raises NotRunning."""
    try:
        from trainmaster_local import cluster
    except ModuleNotFoundError as error:
        raise NotRunning("the local cluster isn't installed: pip install 'trainmaster[local]'") from error
    try:
        yield cluster
    except cluster.LocalClusterError as error:
        raise NotRunning(str(error)) from error


@contextmanager
def running_cluster(
    folder: Path, *, nodes: int = 1, gpus: int | None = None, operator_options: Sequence[str] = ()
) -> Iterator[RunningCluster]:
    """Starts a cluster in its own folder, and the operator. Stops both after the block, even after an exception.

    Other users of the machine can't enter the folder, because it contains secrets and programs. The nodes share the
    machine's GPUs, or have `gpus` each. `operator_options` are passed to `operator run`. Raises NotRunning.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    state = folder / "cluster"
    began = time.monotonic()
    with local_cluster() as cluster:
        info = cluster.up(state, nodes=nodes, gpus=gpus, detach=True, configure=CONFIGURE)
    try:
        seconds = time.monotonic() - began
        _install(info.kubeconfig)
        log = folder / "operator.log"
        with _operator(info.kubeconfig, log, operator_options) as process:
            yield RunningCluster(info.kubeconfig, info.server, process, log, seconds)
    finally:
        cluster.down(state)


def _install(kubeconfig: Path) -> None:
    """Applies the custom resource definition, and waits until the API server serves its objects."""
    from trainmaster_operator.api.crd import crd

    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.{GROUP}"
    transport = HttpTransport(find_server(str(kubeconfig)))
    query = {"fieldManager": "trainmaster", "force": "true"}
    transport.request("PATCH", path, query=query, body=crd(), content_type="application/apply-patch+yaml")
    deadline = time.monotonic() + ESTABLISHED_SECONDS
    while True:
        conditions = (transport.request("GET", path).get("status") or {}).get("conditions") or []
        if any(each.get("type") == "Established" and each.get("status") == "True" for each in conditions):
            return
        if time.monotonic() > deadline:
            raise NotRunning(f"The custom resource isn't served after {ESTABLISHED_SECONDS:g} s.")
        time.sleep(POLL_SECONDS)


@contextmanager
def _operator(kubeconfig: Path, log: Path, further: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    from trainmaster_local.cluster import interrupted_later

    command = [sys.executable, "-m", "trainmaster.cli.main", "operator", "run"]
    options = ["--kubeconfig", str(kubeconfig), "--all-namespaces", "--no-leader-elect", *further]
    process: subprocess.Popen[bytes] | None = None
    with log.open("wb") as output:
        try:
            with interrupted_later():
                # The operator has its own session, so Ctrl-C doesn't reach it. This program stops it.
                process = subprocess.Popen([*command, *options], stdout=output, stderr=output, start_new_session=True)
            yield process
        finally:
            if process is not None:
                process.terminate()
                try:
                    process.wait(OPERATOR_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def run_locally(
    work: Callable[..., Any] | Mapping[str, Any],
    *,
    timeout: float | None = None,
    node_gpus: int | None = None,
    **options: Unpack[TrainOptions],
) -> FinishedJob:
    """Trains a function or a job's manifest on an embedded cluster, and returns the job once it has ended.

    For a function, `options` are those of `train`. Cluster and operator run for this call only. The node has this
    machine's GPUs, or `node_gpus` of them. Raises the errors of `train` and `submit`, and WaitTimeout if the job hasn't
    ended after `timeout` seconds.

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
        raise InvalidRequest(f"{', '.join(options)}: not for a manifest, which has these values itself; write it there")
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
        # The job keeps no output, or its pods never ran.
        return ()


def _ended(cluster: RunningCluster, jobs: JobClient, name: str, timeout: float | None) -> TrainingJob:
    """Waits for the job's end. Raises NotRunning if the operator ends first."""
    left = math.inf if timeout is None else timeout
    while True:
        seconds = min(left, CHECK_SECONDS)
        try:
            return jobs.wait(name, timeout=seconds)
        except WaitTimeout as error:
            if cluster.operator.poll() is not None:
                ended = f"The operator ended with {cluster.operator.returncode}: see {cluster.operator_log}."
                raise NotRunning(ended) from error
            left -= seconds
            if left <= 0:
                message = f"timed out after {timeout:g} s: job {name} is still {error.phase}"
                raise WaitTimeout(message, error.phase) from error

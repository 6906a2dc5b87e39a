"""The scenarios of test_failures_*.py share one operator, a job that a test watches, and ways to break it.

A scenario's job runs `train(...)`. Its ranks step together, as a real job's do, so if one of them ends or stops, the
others fail too and report it. In every attempt they step until the test makes its fault; in the attempt after the last
fault they end with 0 after a few steps. So a job that recovered ends as Succeeded.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cluster.operator_under_test import OperatorProcess, running_operator, training_job
from trainmaster.client.errors import ClientError
from trainmaster.client.jobs import JobClient
from trainmaster_local.config import NodeConfig
from trainmaster_local.testing.clusters import Cluster

# Long enough for a machine that does ten other things; a healthy test never waits this long.
SECONDS = 60.0

_TRAIN = """
import json, os, pathlib, signal, socket, sys, time
rank, world, attempt = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TRAINMASTER_ATTEMPT"))
print(f"rank {{rank}} of {{world}}, attempt {{attempt}}, pid {{os.getpid()}}, parent {{os.getppid()}}.", flush=True)
progress = pathlib.Path(os.environ["TRAINMASTER_PROGRESS_FILE"])
step, last = 0, attempt > {faults}
{first}

# A collective of sockets. Beside the port that torchrun may have taken.
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1
peers = []
if rank == 0:
    server = socket.create_server(address)
    peers = [server.accept()[0] for _ in range(world - 1)]
while rank > 0 and not peers:
    try:
        peers = [socket.create_connection(address, 30)]
        peers[0].settimeout(None)
    except OSError:
        time.sleep(0.05)
{together}

def all_reduce():
    if rank > 0:
        peers[0].sendall(b"+")
    for peer in peers:
        if not peer.recv(1):
            raise ConnectionResetError("connection closed by peer")
    if rank == 0:
        for peer in peers:
            peer.sendall(b"=")

while not (last and step == 3):
    all_reduce()
    step += 1
    progress.write_text(json.dumps({{"step": step}}))
    time.sleep(0.1)
print(f"rank {{rank}} is done.", flush=True)
"""
_STARTED = re.compile(r"rank (\d+) of (\d+), attempt (\d+), pid (\d+), parent (\d+)\.")


def train(faults: int = 1, first: str = "", together: str = "") -> str:
    """Returns a rank's program: attempts 1 to `faults` wait for a fault, the next one ends well. `first` is lines of
    Python that each rank runs before its first step; they can use `rank`, `attempt` and `last`. `together` is the same,
    run once all ranks run, for a fault after which each of them has reported it.
    """
    return _TRAIN.format(faults=faults, first=textwrap.dedent(first), together=textwrap.dedent(together))


class Start(NamedTuple):
    """Holds what a rank prints about itself when it starts."""

    rank: int
    world: int
    attempt: int
    pid: int
    parent: int


@dataclass
class Scenario:
    """Shows a job by name, as a person sees it with kubectl, and acts on its processes."""

    cluster: Cluster
    client: JobClient
    name: str

    def apply(self, script: str | None = None, *, workers: int = 2, **spec: Any) -> None:
        """Applies the job. Its ranks wait for one fault unless another script is given."""
        self.cluster.apply(training_job(self.name, script or train(), workers=workers, **spec))

    @property
    def status(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.client.get(self.name).raw.get("status") or {}
        return found

    @property
    def failures(self) -> list[Mapping[str, Any]]:
        """Returns the failures, newest first."""
        return list(self.status.get("failures") or [])

    @property
    def accounts(self) -> tuple[int, int, int]:
        """Returns attempt, restarts and disruptions."""
        status = self.status
        return status.get("attempt", 0), status.get("restarts", 0), status.get("disruptions", 0)

    def why(self, condition: str) -> Mapping[str, Any]:
        """Returns one of the status's conditions."""
        conditions = self.status.get("conditions") or []
        return next((item for item in conditions if item["type"] == condition), {})

    def until(self, check: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
        """Waits until something is true."""
        return self.cluster.eventually(check, seconds, f"{self.name}: {what}")

    def until_phase(self, phase: str, attempt: int = 0, seconds: float = SECONDS) -> Mapping[str, Any]:
        """Waits for a phase, in this attempt or a later one; returns the status."""

        def reached() -> Mapping[str, Any] | None:
            status = self.status
            if status.get("phase") in ("Succeeded", "Failed") and phase != status["phase"]:
                pytest.fail(f"{self.name} is {status['phase']}, not {phase}: {self.failures}")
            assert status.get("phase") == phase, {key: status.get(key) for key in ("phase", "attempt", "conditions")}
            return status if status.get("attempt", 0) >= attempt else None

        found: Mapping[str, Any] = self.until(reached, f"{phase} in attempt {attempt or 'any'}", seconds)
        return found

    def until_training(self, attempt: int = 1, workers: int = 2) -> dict[int, Start]:
        """Waits until all ranks of an attempt have started and the status shows it."""
        started = self.until_started(attempt, workers)
        self.until_phase("Running", attempt)
        return started

    def until_started(self, attempt: int = 1, workers: int = 2) -> dict[int, Start]:
        """Waits until all ranks of an attempt have started, by what they printed."""
        started: dict[int, Start] = self.until(lambda: self._all_started(attempt, workers), f"ranks of {attempt}")
        return started

    def _all_started(self, attempt: int, workers: int) -> dict[int, Start] | None:
        found = {start.rank: start for start in self.starts() if start.attempt == attempt}
        return found if len(found) >= workers else None

    def starts(self) -> list[Start]:
        """Returns every start of a rank in the logs of the present pods, including their containers' previous runs."""
        return [
            Start(*map(int, found.groups()))
            for name, pod in self.pods().items()
            for previous in (False, True)
            if not previous or _restarts(pod)
            for found in _STARTED.finditer(self.log(name, previous=previous))
        ]

    def log(self, pod: str, *, previous: bool = False) -> str:
        """Returns a worker's output; empty while there is none."""
        path = f"/api/v1/namespaces/{self.client.namespace}/pods/{pod}/log"
        query = {"container": "worker", **({"previous": "true"} if previous else {})}
        try:
            return b"\n".join(self.client.transport.lines(path, query=query, read_seconds=10)).decode()
        except ClientError:
            return ""

    def kept_log(self, worker: int) -> str:
        """Returns the part of a worker's log that is kept when the pods are gone."""
        data = self.until(lambda: self.cluster.get("configmap", f"{self.name}-logs")["data"], "its logs are kept")
        return str(data.get(f"worker-{worker}.log", ""))

    def pods(self) -> dict[str, Mapping[str, Any]]:
        return {pod["metadata"]["name"]: pod for pod in self.client.pods(self.name)}

    def uids(self) -> dict[str, str]:
        return {name: pod["metadata"]["uid"] for name, pod in self.pods().items()}

    def container_restarts(self) -> list[int]:
        return [_restarts(pod) for pod in self.pods().values()]

    def nodes(self) -> dict[str, str]:
        """Returns each pod's node."""
        return {name: pod["spec"].get("nodeName", "") for name, pod in self.pods().items()}

    def send(self, worker: int, pid: int, number: signal.Signals) -> None:
        """Sends a signal to a process of a worker's container."""
        if self.cluster.shared.embedded is not None:
            os.kill(pid, number)
        else:
            # Python sends it, because slim images have no kill, which belongs to procps.
            program = f"import os; os.kill({pid}, {int(number)})"
            self.cluster.kubectl("exec", f"{self.name}-{worker}", "-c", "worker", "--", "python3", "-c", program)

    def kill_agent(self, worker: int, start: Start) -> None:
        """Sends SIGKILL to the first process of a worker's container."""
        self.cluster.shared.needs_embedded("a container can't kill its own first process (pid_namespaces(7))")
        os.kill(start.parent, signal.SIGKILL)

    def patch(self, spec: str) -> None:
        """Merges JSON into the job's spec."""
        self.cluster.patch("dtj", self.name, {"spec": json.loads(spec)})

    def succeeds(self, attempt: int, restarts: int = 0, disruptions: int = 0) -> None:
        """Waits until the job succeeds, and checks its attempts, restarts and disruptions."""
        self.until_phase("Succeeded")
        assert self.accounts == (attempt, restarts, disruptions), self.failures


@dataclass
class Stage:
    """Holds the operator and the two namespaces that it serves; in `other`, tests set quotas and the like."""

    main: Cluster
    other: Cluster
    operator: OperatorProcess
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @contextmanager
    def scenario(self, cluster: Cluster | None = None) -> Iterator[Scenario]:
        """Makes a job with a new name, in the main namespace unless another is given."""
        where = cluster or self.main
        name = f"job-{next(self._numbers)}"
        made = Scenario(where, JobClient(where.namespace, kubeconfig=str(where.kubeconfig)), name)
        try:
            yield made
        finally:
            # Shown by pytest when the test fails.
            with suppress(ClientError):
                print(*made.failures, sep="\n")
            print("\n".join(line for line in self.operator.text().splitlines() if f"/{name}:" in line))
            where.delete("dtj", name, wait=False, missing_ok=True)

    @contextmanager
    def nodes(self, count: int, gpus: int = 2) -> Iterator[list[str]]:
        """Adds nodes to the embedded cluster for one test alone, labelled `for: <the first one's name>`."""
        embedded = self.main.embedded
        first = next(self._numbers)
        names = [f"node-{first}-{index}" for index in range(count)]
        for name in names:
            config = NodeConfig(
                name=name, cpu="64", memory="64Gi", resources={"nvidia.com/gpu": gpus}, labels={"for": names[0]}
            )
            embedded.call(embedded.cluster.add_node(config))
        try:
            yield names
        finally:
            for name in names:
                if name in embedded.cluster.kubelets:
                    embedded.call(embedded.cluster.remove_node(name))


@contextmanager
def new_stage(main: Cluster, other: Cluster, folder: Path) -> Iterator[Stage]:
    """Starts an operator for both namespaces."""
    with running_operator(main, folder, "--namespace", other.namespace) as operator:
        yield Stage(main, other, operator)


def _restarts(pod: Mapping[str, Any]) -> int:
    containers = pod["status"].get("containerStatuses") or []
    return sum(int(container["restartCount"]) for container in containers)

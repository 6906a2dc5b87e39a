"""Reads the ranks' current figures from the agents' /metrics, through the API server's proxy to the pods.

Any program in a pod could answer instead of the agent. So an answer is limited in bytes and time, only figures are
kept, and the worker is taken from the pod's label, not from the answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from trainmaster.client.errors import ClientError
from trainmaster.client.job import worker_index
from trainmaster.client.objects import text
from trainmaster.client.transport import AsyncTransport
from trainmaster_operator.wire.limits import MAX_INDEX, MAX_PROCESSES
from trainmaster_operator.wire.names import AGENT_PORT
from trainmaster_operator.wire.report import STATES
from trainmaster_operator.wire.values import decimal

# Size limit of an agent's page (bytes). The largest page of a real agent is half as large.
MAX_BYTES = 2 * 1024 * 1024
SECONDS = 3.0
# A sample in the text format of Prometheus. The rank is the only label that is used.
_SAMPLE = re.compile(r'^trainmaster_([a-z_]{1,40})\{[^{}\n]{0,1000}rank="(\d{1,10})"\} (\S{1,40})\r?$', re.MULTILINE)

_ATTEMPT = re.compile(r"(?m)^trainmaster_attempt\{[^{}]{0,1000}\} (\d{1,9})$")
_STATE = re.compile(r'(?m)^trainmaster_worker_state\{[^{}]{0,1000}state="(\w{1,20})"\} 1$')


@dataclass(frozen=True)
class RankMetrics:
    """RankMetrics contains a rank's last figures. Figures that the script doesn't report are None."""

    worker: int
    rank: int
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    # A step's time including waits. If the rank doesn't report this time, it is the time between two steps.
    step_seconds: float | None = None
    # The norm of the rank's own gradients if it is known, or else the norm of the mean of all ranks' gradients.
    gradient_norm: float | None = None
    learning_rate: float | None = None
    # The time of the rank's forward and backward pass in a step, without waits for other ranks or for data.
    compute_seconds: float | None = None

    @property
    def own_seconds(self) -> float | None:
        """Returns the computing time, or else the step's time, which includes waits for slower ranks."""
        return self.step_seconds if self.compute_seconds is None else self.compute_seconds


@dataclass(frozen=True)
class WorkerState:
    """WorkerState is a worker's state and newest attempt, as its agent reports them."""

    worker: int
    attempt: int
    state: str


_FIELDS = {field.name for field in fields(RankMetrics)} - {"worker", "rank"}


@dataclass(frozen=True)
class JobMetrics:
    """JobMetrics contains the ranks' figures, sorted by worker and rank, and why other workers have no figures."""

    ranks: tuple[RankMetrics, ...]
    silent: Mapping[int, str]


async def job_metrics(
    transport: AsyncTransport, namespace: str, pods: list[Mapping[str, Any]], *, most: int | None = None
) -> JobMetrics:
    """Asks all pods' agents at once for about `most` ranks' figures. An agent that doesn't answer causes no error."""
    each = MAX_PROCESSES if most is None else min(MAX_PROCESSES, -(-most // max(1, len(pods))))
    answers = await transport.together([_worker(transport, namespace, pod, each) for pod in pods])
    ranks = sorted((rank for found, _ in answers for rank in found), key=lambda rank: (rank.worker, rank.rank))
    silent = {worker_index(pod): why for pod, (_, why) in zip(pods, answers, strict=True) if why}
    return JobMetrics(tuple(ranks), silent)


async def _worker(
    transport: AsyncTransport, namespace: str, pod: Mapping[str, Any], most: int
) -> tuple[list[RankMetrics], str | None]:
    phase = text(pod, "status", "phase")
    if phase != "Running":
        return [], f"its pod is {phase or 'new'}"
    path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}:{AGENT_PORT}/proxy/metrics"
    try:
        page = await transport.beginning(path, limit=MAX_BYTES, seconds=SECONDS)
    except ClientError as error:
        return [], str(error)
    return parse_metrics(worker_index(pod), page.decode("utf-8", "replace"), most), None


def parse_metrics(worker: int, page: str, most: int = MAX_PROCESSES) -> list[RankMetrics]:
    """Parses an agent's page into figures of at most `most` ranks, sorted by rank. Ignores invalid lines."""
    found: dict[int, dict[str, Any]] = {}
    for sample in _SAMPLE.finditer(page):
        if sample[1] not in _FIELDS:
            continue
        rank, value = decimal(sample[2], MAX_INDEX), _figure(sample[3])
        if rank is None or value is None or (rank not in found and len(found) >= most):
            continue
        whole = sample[1] in ("step", "total_steps")
        found.setdefault(rank, {})[sample[1]] = int(value) if whole else value
    return [RankMetrics(worker, rank, **figures) for rank, figures in sorted(found.items())]


def parse_worker_state(worker: int, page: str) -> WorkerState | None:
    """Parses the attempt and the state from an agent's page. Returns None if either is missing."""
    attempt, state = _ATTEMPT.search(page), _STATE.search(page)
    if attempt is None or state is None or state[1] not in STATES:
        return None
    return WorkerState(worker, int(attempt[1]), state[1])


def _figure(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) < 2**53 else None

"""Reads the current figures of ranks and of workers' systems from the agents' /metrics.

The requests go through the API server's proxy to the pods.

Any program in a pod could answer instead of the agent. So an answer is limited in bytes and time, only figures are
kept, and the worker is taken from the pod's label, not from the answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from trainmaster.client.errors import ClientError
from trainmaster.client.job import worker_index
from trainmaster.client.objects import text
from trainmaster.client.transport import AsyncTransport
from trainmaster_operator.wire.limits import MAX_GPUS, MAX_INDEX, MAX_METRICS, MAX_PROCESSES
from trainmaster_operator.wire.names import AGENT_PORT, is_metric_name
from trainmaster_operator.wire.ranks import BUILT_IN
from trainmaster_operator.wire.report import STATES
from trainmaster_operator.wire.system import WORKER_FIELDS, GpuSample, SystemSample
from trainmaster_operator.wire.values import camel, decimal

# Size limit of an agent's page (bytes). The largest page of a real agent is half as large.
MAX_BYTES = 2 * 1024 * 1024
SECONDS = 3.0
# A sample in the text format of Prometheus, of a rank, a GPU or the worker. Only the last labels are used.
_SAMPLE = re.compile(
    r'^trainmaster_([a-z_]{1,40})\{[^{}\n]{0,1000}?(?:name="([\w./-]{1,64})",)?'
    r'(?:rank="(\d{1,10})"|gpu="(\d{1,10})"|worker="\d{1,10}")\} (\S{1,40})\r?$',
    re.MULTILINE | re.ASCII,
)
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
    # The rank's other metrics by name, such as an accuracy.
    metrics: Mapping[str, float] = field(default_factory=dict)

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


_FIELDS = {each.name for each in fields(RankMetrics)} - {"worker", "rank", "metrics"}


@dataclass(frozen=True)
class JobMetrics:
    """JobMetrics contains the ranks' figures, sorted by worker and rank, and why other workers have no figures.

    `systems` contains the processor, memory, network and GPUs of each worker whose agent has sampled them.
    """

    ranks: tuple[RankMetrics, ...]
    silent: Mapping[int, str]
    systems: Mapping[int, SystemSample] = field(default_factory=dict)


async def job_metrics(
    transport: AsyncTransport, namespace: str, pods: list[Mapping[str, Any]], *, most: int | None = None
) -> JobMetrics:
    """Asks all pods' agents at once for about `most` ranks' figures. An agent that doesn't answer causes no error."""
    each = MAX_PROCESSES if most is None else min(MAX_PROCESSES, -(-most // max(1, len(pods))))
    answers = await transport.together([_worker(transport, namespace, pod, each) for pod in pods])
    found = [(worker_index(pod), *answer) for pod, answer in zip(pods, answers, strict=True)]
    ranks = sorted((rank for _, page, _ in found for rank in page.ranks), key=lambda rank: (rank.worker, rank.rank))
    systems = {worker: page.system for worker, page, _ in found if page.system != NOTHING}
    return JobMetrics(tuple(ranks), {worker: why for worker, _, why in found if why}, systems)


async def _worker(
    transport: AsyncTransport, namespace: str, pod: Mapping[str, Any], most: int
) -> tuple[AgentPage, str | None]:
    phase = text(pod, "status", "phase")
    if phase != "Running":
        return AgentPage(), f"its pod is {phase or 'new'}"
    path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}:{AGENT_PORT}/proxy/metrics"
    try:
        page = await transport.beginning(path, limit=MAX_BYTES, seconds=SECONDS)
    except ClientError as error:
        return AgentPage(), str(error)
    return parse_page(worker_index(pod), page.decode("utf-8", "replace"), most), None


NOTHING = SystemSample()


@dataclass(frozen=True)
class AgentPage:
    """AgentPage contains the figures of an agent's page: those of its ranks, sorted by rank, and of its system."""

    ranks: tuple[RankMetrics, ...] = ()
    system: SystemSample = NOTHING


def parse_metrics(worker: int, page: str, most: int = MAX_PROCESSES) -> list[RankMetrics]:
    """Parses an agent's page into figures of at most `most` ranks, sorted by rank. Ignores invalid lines."""
    return list(parse_page(worker, page, most).ranks)


def parse_page(worker: int, page: str, most: int = MAX_PROCESSES) -> AgentPage:
    """Parses an agent's page. Ignores invalid lines, and further ones than the limits of ranks, metrics and GPUs."""
    found: dict[int, dict[str, Any]] = {}
    system: dict[str, Any] = {}
    gpus: dict[str, dict[str, float]] = {}
    for sample in _SAMPLE.finditer(page):
        figure, name, rank_text, gpu, value = sample[1], sample[2], sample[3], sample[4], _figure(sample[5])
        if value is None:
            continue
        if rank_text is None:
            if gpu is None and figure in WORKER_FIELDS:
                system[camel(figure)] = value
            elif gpu is not None and figure in GpuSample._fields and (gpu in gpus or len(gpus) < MAX_GPUS):
                gpus.setdefault(gpu, {})[camel(figure)] = value
            continue
        rank = decimal(rank_text, MAX_INDEX)
        is_known = figure in _FIELDS or (figure == "metric" and is_metric_name(name) and name not in BUILT_IN)
        if rank is None or not is_known or (rank not in found and len(found) >= most):
            continue
        figures = found.setdefault(rank, {})
        if figure == "metric":
            own = figures.setdefault("metrics", {})
            if name in own or len(own) < MAX_METRICS:
                own[name] = value
        else:
            figures[figure] = int(value) if figure in ("step", "total_steps") else value
    ranks = [RankMetrics(worker, rank, **figures) for rank, figures in sorted(found.items())]
    return AgentPage(tuple(ranks), SystemSample.parse({**system, "gpus": gpus}))


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

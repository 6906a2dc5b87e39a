"""This module renders the page /metrics in Prometheus' text format (version 0.0.4)."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import stat
from collections.abc import Mapping
from typing import Optional

from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.report import STATES, Report
from trainmaster_operator.wire.system import WORKER_FIELDS, SystemSample

# The most files of the ranks' state that are counted.
_MOST_FILES = 1000
_METRICS_OF_SYSTEM = {
    "cpu_cores": "Cores that the worker's container keeps busy.",
    "cpu_limit_cores": "Its limit, or else the machine's cores.",
    "memory_bytes": "Memory that the container uses, without files that the kernel can drop.",
    "memory_limit_bytes": "Its limit, or else the machine's memory.",
    "network_receive_bytes_per_second": "Bytes that the pod receives, without the loopback interface.",
    "network_transmit_bytes_per_second": "Bytes that the pod sends, without the loopback interface.",
    "gpu_utilization": "The share of time in which the GPU ran a kernel, from 0 to 1.",
    "gpu_memory_bytes": "Memory of the GPU that is in use.",
    "gpu_memory_limit_bytes": "Memory of the GPU.",
}
_METRICS_OF_RANKS = (
    ("step", "trainmaster_step", "Steps done by a rank."),
    ("total_steps", "trainmaster_total_steps", "Steps that a rank is going to do."),
    ("loss", "trainmaster_loss", "A rank's last loss."),
    ("grad_norm", "trainmaster_gradient_norm", "The norm of a rank's own gradients if known, else of all ranks'."),
    ("learning_rate", "trainmaster_learning_rate", "The learning rate of a rank's last update."),
    ("samples_per_second", "trainmaster_samples_per_second", "Samples a second, as a rank reports them."),
    # This metric precedes the next one, so that if a reader cuts the page off, at least one of them is complete for all
    # ranks.
    ("compute_seconds", "trainmaster_compute_seconds", "A rank's own forward and backward of a step, without waiting."),
    ("step_seconds", "trainmaster_step_seconds", "Seconds of a step, as a rank reports them, else between its steps."),
)


def state_bytes(directory: Optional[str]) -> int:
    """Returns how much of the pod's memory the ranks' state takes (`TRAINMASTER_MEMORY_DIR`)."""
    size, places = 0, glob.iglob(os.path.join(glob.escape(directory), "*", "*")) if directory else iter(())
    for place in itertools.islice(places, _MOST_FILES):
        with contextlib.suppress(OSError):
            found = os.lstat(place)
            size += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return size


def render_metrics(
    job: str,
    worker: int,
    report: Optional[Report],
    ranks: Mapping[int, RankProgress],
    warm_bytes: Optional[int],
    state_bytes: int = 0,
    system: Optional[SystemSample] = None,
) -> str:
    """Returns the page. `warm_bytes`: the warm process's own memory; None if there is no warm process."""
    # The label isn't `job`, because Prometheus itself sets `job` for its targets.
    labels = f'job_name="{_escape(job)}",worker="{worker}"'
    attempt, state = (report.attempt, report.state) if report else (0, "Waiting")
    lines = _gauge("trainmaster_attempt", "The newest attempt that this worker took part in.", {labels: attempt})
    states = {f'{labels},state="{name}"': int(name == state) for name in STATES}
    lines += _gauge("trainmaster_worker_state", "1 for the state that the worker is in.", states)
    lines += _system_lines(labels, system or SystemSample())
    for field, metric, help_text in _METRICS_OF_RANKS:
        values = {f'{labels},rank="{rank}"': getattr(progress, field) for rank, progress in ranks.items()}
        lines += _gauge(metric, help_text, {rank: value for rank, value in values.items() if value is not None})
    own = {
        f'{labels},name="{name}",rank="{rank}"': value
        for rank, progress in ranks.items()
        for name, value in progress.metrics
    }
    lines += _gauge("trainmaster_metric", "A metric that a rank reports under this name.", own)
    help_text = "Whether there is a process from which ranks can be forked."
    lines += _gauge("trainmaster_warm_process", help_text, {labels: int(warm_bytes is not None)})
    if warm_bytes is not None:
        help_text = "Its memory that no rank shares with it."
        lines += _gauge("trainmaster_warm_process_private_bytes", help_text, {labels: warm_bytes})
    help_text = "The pod's memory that the ranks' state takes."
    lines += _gauge("trainmaster_state_memory_bytes", help_text, {labels: state_bytes})
    return "\n".join(lines) + "\n"


def _system_lines(labels: str, system: SystemSample) -> list[str]:
    lines: list[str] = []
    for field, help_text in _METRICS_OF_SYSTEM.items():
        if field in WORKER_FIELDS:
            values = {labels: getattr(system, field)}
        else:
            values = {f'{labels},gpu="{index}"': getattr(gpu, field) for index, gpu in system.gpus.items()}
        known = {key: value for key, value in values.items() if value is not None}
        lines += _gauge(f"trainmaster_{field}", help_text, known)
    return lines


def _gauge(metric: str, help_text: str, values: Mapping[str, float]) -> list[str]:
    """Returns a metric's lines, one for each value; `values` is keyed by labels."""
    if not values:
        return []
    found = (f"{metric}{{{labels}}} {value}" for labels, value in values.items())
    return [f"# HELP {metric} {help_text}", f"# TYPE {metric} gauge", *found]


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

"""The operator's and an agent's pages for Prometheus follow its naming conventions (promtool)."""

from __future__ import annotations

from tests.processes.charts.test_alerts import promtool
from trainmaster_operator.agent.network.metrics import render_metrics
from trainmaster_operator.api.v1alpha1 import JobStatus
from trainmaster_operator.controller.observability.metrics import OperatorMetrics
from trainmaster_operator.reconciling.observed.snapshot import Job
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.system import GpuSample, SystemSample

STATUS = {
    "phase": "Running",
    "failures": [{"attempt": 1, "reason": "Hung", "failedAt": "2026-11-21T04:00:00Z"}],
    "timeSpent": {"productive": 1.0},
    "progress": {"step": 1, "totalSteps": 2, "samplesPerSecond": 3.0, "goodput": 0.5},
}


def test_the_operators_page_follows_the_conventions() -> None:
    metrics = OperatorMetrics()
    metrics.count_jobs([Job("ml", "bert", "uid", 1, 0.0, None, JobStatus.model_validate(STATUS))])
    metrics.count_write("apply", "Service")
    metrics.count_unreadable("Pod")
    promtool("check", "metrics", stdin=metrics.text().decode())


def test_an_agents_page_follows_the_conventions() -> None:
    figures = dict.fromkeys(RankProgress._fields, 1)
    progress = RankProgress(**{**figures, "message": "", "section": None, "result": (), "metrics": (("f1", 0.5),)})
    system = SystemSample(1.5, gpus={0: GpuSample(0.5, 1e9, 2e9)})
    promtool("check", "metrics", stdin=render_metrics("bert", 0, None, {0: progress}, 4096, 0, system))

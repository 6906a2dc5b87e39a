"""`observability.metrics`: what /metrics shows of each job."""

from __future__ import annotations

from trainmaster import __version__
from trainmaster.api.v1alpha1 import JobStatus
from trainmaster.controller.observability.metrics import OperatorMetrics
from trainmaster.reconciling.observed.snapshot import Job


def named(name: str, **status: object) -> Job:
    return Job("ml", name, f"uid-{name}", 1, 0.0, None, JobStatus.model_validate(status))


def test_each_jobs_time_is_shown_by_category_and_goes_with_the_job() -> None:
    metrics = OperatorMetrics()
    spent = {"until": "2026-11-21T05:00:00Z", "productive": 30.5, "queue": 10.0}
    metrics.count_jobs(iter([named("bert", progress={"goodput": 0.753}, timeSpent=spent), named("new")]))
    lines = metrics.text().decode().splitlines()
    assert [line for line in lines if line.startswith("trainmaster_job_")] == [
        'trainmaster_job_time_seconds_total{category="productive",job_name="bert",namespace="ml"} 30.5',
        'trainmaster_job_time_seconds_total{category="queue",job_name="bert",namespace="ml"} 10.0',
        'trainmaster_job_goodput_ratio{job_name="bert",namespace="ml"} 0.753',
    ]
    assert 'trainmaster_jobs{phase="Pending"} 2.0' in lines
    metrics.count_jobs([])
    assert "bert" not in metrics.text().decode()


def test_counters_are_there_before_they_count_and_have_no_timestamps_beside_them() -> None:
    metrics = OperatorMetrics()
    metrics.count_transition(JobStatus(phase="Running"), JobStatus(phase="Failed", disruptions=1))
    lines = metrics.text().decode().splitlines()
    assert 'trainmaster_restarts_total{cause="failure"} 0.0' in lines
    assert 'trainmaster_restarts_total{cause="disruption"} 1.0' in lines
    assert 'trainmaster_jobs_finished_total{phase="Succeeded"} 0.0' in lines
    assert 'trainmaster_reconciles_total{result="bug"} 0.0' in lines
    assert "trainmaster_watch_restarts_total 0.0" in lines
    assert f'trainmaster_build_info{{version="{__version__}"}} 1.0' in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)
    assert not [line for line in lines if "_created" in line]

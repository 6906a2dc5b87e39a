"""`observability.metrics` shows metrics of the operator and of each job on /metrics."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.utils import floatToGoString as shown_number

from trainmaster_operator import __version__
from trainmaster_operator.api.v1alpha1 import JobStatus
from trainmaster_operator.controller.observability.metrics import OperatorMetrics
from trainmaster_operator.reconciling.observed.snapshot import Job

NOON = 1_764_158_400.0
TIME = "2025-11-26T{}Z"


def named(name: str, **status: object) -> Job:
    return Job("ml", name, f"uid-{name}", 1, NOON, None, JobStatus.model_validate(status))


def condition(kind: str, status: str, reason: str, at: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": TIME.format(at)}


def shown(jobs: Iterable[Job], now: float = NOON) -> list[str]:
    """Returns the series of these jobs, without the labels that all of them share."""
    metrics = OperatorMetrics(lambda: now)
    metrics.count_jobs(jobs)
    lines = [line for line in metrics.text().decode().splitlines() if line.startswith("trainmaster_job_")]
    assert all('job_name="' in line and 'namespace="ml"' in line for line in lines)
    return [line.removeprefix("trainmaster_job_").replace(',namespace="ml"', "") for line in lines]


def test_each_jobs_time_is_shown_by_category_and_goes_with_the_job() -> None:
    metrics = OperatorMetrics()
    spent = {"until": "2026-11-21T05:00:00Z", "productive": 30.5, "queue": 10.0}
    metrics.count_jobs(iter([named("bert", progress={"goodput": 0.753}, timeSpent=spent), named("new")]))
    lines = metrics.text().decode().splitlines()
    assert 'trainmaster_job_time_seconds_total{category="productive",job_name="bert",namespace="ml"} 30.5' in lines
    assert 'trainmaster_job_time_seconds_total{category="queue",job_name="bert",namespace="ml"} 10.0' in lines
    assert 'trainmaster_job_goodput_ratio{job_name="bert",namespace="ml"} 0.753' in lines
    assert 'trainmaster_jobs{phase="Pending"} 2.0' in lines
    metrics.count_jobs([])
    assert "bert" not in metrics.text().decode()


def test_a_running_job_shows_its_phase_restarts_progress_and_newest_failure() -> None:
    failures = [
        {"attempt": 2, "reason": "Hung", "worker": 1, "rank": 5, "node": "n1", "failedAt": TIME.format("12:01:00")},
        {"attempt": 1, "reason": "OOMKilled", "failedAt": TIME.format("11:00:00")},
    ]
    job = named(
        "bert",
        phase="Running",
        restarts=2,
        disruptions=1,
        failures=failures,
        workers={"desired": 4, "running": 3},
        progress={"step": 10, "totalSteps": 100, "samplesPerSecond": 2.5},
        conditions=[condition("Running", "True", "AllRanksUp", "12:02:00")],
    )
    assert shown([job]) == [
        'phase{job_name="bert",phase="Running",reason="AllRanksUp"} 1.0',
        f'phase_start_time_seconds{{job_name="bert"}} {shown_number(NOON + 120)}',
        'restarts_total{cause="failure",job_name="bert"} 2.0',
        'restarts_total{cause="disruption",job_name="bert"} 1.0',
        'last_failure_timestamp_seconds{job_name="bert",node="n1",rank="5",reason="Hung",worker="1"} '
        + shown_number(NOON + 60),
        'workers_desired{job_name="bert"} 4.0',
        'workers_running{job_name="bert"} 3.0',
        'step{job_name="bert"} 10.0',
        'total_steps{job_name="bert"} 100.0',
        'samples_per_second{job_name="bert"} 2.5',
    ]


def starts(*jobs: Job) -> list[str]:
    return [line for line in shown(jobs) if line.startswith("phase")]


def test_a_job_that_was_resumed_waits_since_then() -> None:
    waits = condition("Running", "False", "Unschedulable", "10:00:00")
    resumed = condition("Suspended", "False", "Resumed", "11:30:00")
    assert starts(named("bert", phase="Pending", conditions=[waits, resumed])) == [
        'phase{job_name="bert",phase="Pending",reason="Unschedulable"} 1.0',
        f'phase_start_time_seconds{{job_name="bert"}} {shown_number(NOON - 1800)}',
    ]
    held = {**resumed, "status": "True", "reason": "Queued"}
    for phase in ("Suspending", "Suspended"):
        assert starts(named("bert", phase=phase, conditions=[waits, held]))[0] == (
            f'phase{{job_name="bert",phase="{phase}",reason="Queued"}} 1.0'
        )


def test_a_job_that_nobody_has_looked_at_yet_waits_since_it_was_made() -> None:
    assert starts(named("new")) == [
        'phase{job_name="new",phase="Pending",reason=""} 1.0',
        f'phase_start_time_seconds{{job_name="new"}} {shown_number(NOON)}',
    ]


def test_a_finished_job_shows_all_for_an_hour_and_its_phase_for_a_day() -> None:
    failed = condition("Failed", "True", "OOMKilled", "12:00:00")
    over = named("bert", phase="Failed", completionTime=TIME.format("12:00:00"), conditions=[failed])
    phase = 'phase{job_name="bert",phase="Failed",reason="OOMKilled"} 1.0'
    since = f'phase_start_time_seconds{{job_name="bert"}} {shown_number(NOON)}'
    assert shown([over], NOON + 3599)[:2] == [phase, since] and len(shown([over], NOON + 3599)) > 2
    assert shown([over], NOON + 3601) == [phase, since]
    assert shown([over], NOON + 86_401) == []


def test_a_job_has_a_handful_of_series_besides_where_its_time_went() -> None:
    failure = {"attempt": 1, "reason": "Hung", "failedAt": TIME.format("12:01:00")}
    progress = {"step": 10, "totalSteps": 100, "samplesPerSecond": 2.5, "goodput": 0.5}
    assert len(shown([named("bert", phase="Running", progress=progress, failures=[failure])])) == 11


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

"""The client reads the ranks' metrics from their agents, and copes with any answer."""

from __future__ import annotations

import pytest

from tests.unit.client.fakes import FakeTransport, job, pod
from trainmaster.client import JobClient, JobNotFound, NoCluster, RankMetrics
from trainmaster.client.metrics import WorkerState, parse_metrics, parse_page, parse_worker_state
from trainmaster_operator.agent.network.metrics import render_metrics
from trainmaster_operator.wire.limits import MAX_GPUS, MAX_METRICS, MAX_PROCESSES
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.system import GpuSample, SystemSample

PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/trainmaster.dev/v1alpha1/namespaces/default/distributedtrainingjobs"


def page(worker: int, *ranks: int, name: str = "reviews") -> bytes:
    figures = {"step": 7, "total_steps": 70, "loss": 0.5, "samples_per_second": 80.0, "step_seconds": 0.1}
    progress = RankProgress(**figures, grad_norm=2.5, learning_rate=1e-05, compute_seconds=0.04)  # type: ignore[arg-type]
    return render_metrics(name, worker, None, dict.fromkeys(ranks, progress), None).encode()


def test_what_an_agent_serves_is_read_by_worker_and_rank() -> None:
    transport = FakeTransport(
        {
            f"GET {PODS}": {"items": [pod(1), pod(0)]},
            f"GET {PODS}/reviews-0:8472/proxy/metrics": page(0, 1, 0),
            f"GET {PODS}/reviews-1:8472/proxy/metrics": page(1, 2, 3),
        }
    )
    metrics = JobClient("default", transport=transport).metrics("reviews")
    assert [(each.worker, each.rank) for each in metrics.ranks] == [(0, 0), (0, 1), (1, 2), (1, 3)]
    assert metrics.ranks[0] == RankMetrics(0, 0, 7, 70, 0.5, 80.0, 0.1, 2.5, 1e-05, 0.04)
    assert metrics.silent == {}


def test_ranks_are_compared_by_what_they_compute_and_without_that_by_their_steps() -> None:
    assert RankMetrics(0, 0, step_seconds=0.5, compute_seconds=0.2).own_seconds == 0.2
    assert RankMetrics(0, 0, step_seconds=0.5).own_seconds == 0.5
    assert RankMetrics(0, 0).own_seconds is None


def test_workers_that_dont_answer_are_named_with_the_reason() -> None:
    transport = FakeTransport(
        {
            f"GET {PODS}": {"items": [pod(0), pod(1), pod(2, phase="Pending")]},
            f"GET {PODS}/reviews-0:8472/proxy/metrics": page(0, 0),
            f"GET {PODS}/reviews-1:8472/proxy/metrics": NoCluster("The cluster at x can't answer now (HTTP 503)."),
        }
    )
    metrics = JobClient("default", transport=transport).metrics("reviews")
    assert [each.worker for each in metrics.ranks] == [0]
    assert metrics.silent == {1: "The cluster at x can't answer now (HTTP 503).", 2: "its pod is Pending"}


def test_a_job_without_pods_has_no_metrics_and_one_that_isnt_there_is_an_error() -> None:
    transport = FakeTransport({f"GET {PODS}": {"items": []}, f"GET {JOBS}/reviews": job()})
    assert JobClient("default", transport=transport).metrics("reviews").ranks == ()
    transport.answers[f"GET {JOBS}/reviews"] = JobNotFound("no such job")
    with pytest.raises(JobNotFound):
        JobClient("default", transport=transport).metrics("reviews")


@pytest.mark.parametrize(
    "line",
    [
        'trainmaster_step{rank="0"} NaN',
        'trainmaster_step{rank="0"} inf',
        'trainmaster_step{rank="0"} 1e300',
        'trainmaster_step{rank="99999999999"} 1',
        'trainmaster_step{rank="-1"} 1',
        'trainmaster_step{rank="0"} 1 2 3',
        'trainmaster_other{rank="0"} 1',
        'trainmaster_step{worker="0"} 1',
        "trainmaster_step{" + 'x="y",' * 5_000 + 'rank="0"} 1',
        "<html>",
        "\0" * 100,
    ],
)
def test_what_is_no_figure_is_left_out(line: str) -> None:
    assert parse_metrics(0, line) == []


def test_a_worker_has_no_more_ranks_than_it_can_have_and_names_no_other_worker() -> None:
    lines = "\n".join(f'trainmaster_step{{worker="5",rank="{rank}"}} 1' for rank in range(2 * MAX_PROCESSES))
    found = parse_metrics(3, lines)
    assert len(found) == MAX_PROCESSES
    assert {each.worker for each in found} == {3}


def test_any_metric_of_a_rank_and_the_workers_system_are_read() -> None:
    ranks = {4: RankProgress(step=1, metrics=(("accuracy", 0.5), ("val/f1", 1e-9))), 5: RankProgress(loss=2.0)}
    gpus = {0: GpuSample(0.97, 3e9, 8e9), 1: GpuSample(gpu_memory_bytes=1e9)}
    system = SystemSample(cpu_cores=1.5, memory_bytes=2e9, network_receive_bytes_per_second=0.0, gpus=gpus)
    found = parse_page(2, render_metrics("reviews", 2, None, ranks, None, 0, system))
    assert [(each.rank, each.metrics) for each in found.ranks] == [(4, {"accuracy": 0.5, "val/f1": 1e-9}), (5, {})]
    assert found.system == system
    transport = FakeTransport(
        {
            f"GET {PODS}": {"items": [pod(0), pod(1)]},
            f"GET {PODS}/reviews-0:8472/proxy/metrics": render_metrics("reviews", 0, None, {}, None).encode(),
            f"GET {PODS}/reviews-1:8472/proxy/metrics": render_metrics("a", 1, None, {}, None, 0, system).encode(),
        }
    )
    assert JobClient("default", transport=transport).metrics("reviews").systems == {1: system}


def test_a_hostile_page_gives_no_more_metrics_and_gpus_than_a_worker_can_have() -> None:
    lines = [f'trainmaster_metric{{worker="0",name="name_{n}",rank="0"}} {n}' for n in range(100_000)]
    lines += [f'trainmaster_gpu_utilization{{worker="0",gpu="{n}"}} 5' for n in range(1_000)]
    lines += [f'trainmaster_{name}{{worker="0"}} 1' for name in ("cpu_cores", "other")]
    lines += ['trainmaster_metric{name="loss",rank="1"} 1', 'trainmaster_metric{name="a b",rank="2"} 1']
    lines += ['trainmaster_metric{rank="3"} 1', 'trainmaster_memory_bytes{worker="0"} -1']
    found = parse_page(0, "\n".join(lines))
    assert [(each.rank, len(each.metrics)) for each in found.ranks] == [(0, MAX_METRICS)]
    assert len(found.system.gpus) == MAX_GPUS and found.system.gpus[0] == GpuSample(gpu_utilization=1.0)
    assert (found.system.cpu_cores, found.system.memory_bytes) == (1.0, None)


def test_a_workers_state_is_that_of_the_agents_own_page() -> None:
    page = render_metrics("circles", 1, Report(2, 1, "uid-1", "Starting"), {}, None)
    assert parse_worker_state(1, page) == WorkerState(1, 2, "Starting")


@pytest.mark.parametrize(
    "page",
    [
        "",
        'trainmaster_attempt{worker="1"} 2',
        'trainmaster_attempt{worker="1"} 2\ntrainmaster_worker_state{state="Running"} 0',
        'trainmaster_attempt{worker="1"} 2\ntrainmaster_worker_state{state="Dancing"} 1',
        'trainmaster_attempt{worker="1"} 99999999999\ntrainmaster_worker_state{state="Running"} 1',
    ],
)
def test_a_page_without_a_state_has_none(page: str) -> None:
    assert parse_worker_state(1, page) is None

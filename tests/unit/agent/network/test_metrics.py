"""The agent's page of metrics is text that Prometheus can read."""

from __future__ import annotations

from pathlib import Path

from trainmaster_operator.agent.network.metrics import render_metrics, state_bytes
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.system import GpuSample, SystemSample


def test_labels_are_escaped_and_unknown_figures_left_out() -> None:
    text = render_metrics('a"b\\c', 3, Report(2, 3, "u", "Running"), {7: RankProgress(step=4, loss=0.5)}, None)
    assert 'trainmaster_attempt{job_name="a\\"b\\\\c",worker="3"} 2\n' in text
    assert 'trainmaster_loss{job_name="a\\"b\\\\c",worker="3",rank="7"} 0.5\n' in text
    assert "trainmaster_total_steps" not in text


def test_figures_by_which_a_rank_stands_out_are_shown_of_each() -> None:
    ranks = {
        0: RankProgress(grad_norm=1.5, learning_rate=0.01, step_seconds=0.5, compute_seconds=0.2),
        1: RankProgress(grad_norm=40.25, learning_rate=0.01, step_seconds=0.5, compute_seconds=0.4),
    }
    figures = [
        line for line in render_metrics("a", 3, None, ranks, None).splitlines() if "rank=" in line or "gradient" in line
    ]
    assert figures == [
        "# HELP trainmaster_gradient_norm The norm of a rank's own gradients if known, else of all ranks'.",
        "# TYPE trainmaster_gradient_norm gauge",
        'trainmaster_gradient_norm{job_name="a",worker="3",rank="0"} 1.5',
        'trainmaster_gradient_norm{job_name="a",worker="3",rank="1"} 40.25',
        'trainmaster_learning_rate{job_name="a",worker="3",rank="0"} 0.01',
        'trainmaster_learning_rate{job_name="a",worker="3",rank="1"} 0.01',
        'trainmaster_compute_seconds{job_name="a",worker="3",rank="0"} 0.2',
        'trainmaster_compute_seconds{job_name="a",worker="3",rank="1"} 0.4',
        'trainmaster_step_seconds{job_name="a",worker="3",rank="0"} 0.5',
        'trainmaster_step_seconds{job_name="a",worker="3",rank="1"} 0.5',
    ]


def test_a_ranks_own_metrics_have_their_name_as_a_label_and_the_system_has_its_own_metrics() -> None:
    system = SystemSample(cpu_cores=1.5, memory_limit_bytes=4e9, gpus={1: GpuSample(gpu_utilization=0.25)})
    ranks = {7: RankProgress(metrics=(("eval/f1", 0.5),))}
    lines = [
        line for line in render_metrics("a", 3, None, ranks, None, 0, system).splitlines() if not line.startswith("#")
    ]
    for line in (
        'trainmaster_metric{job_name="a",worker="3",name="eval/f1",rank="7"} 0.5',
        'trainmaster_cpu_cores{job_name="a",worker="3"} 1.5',
        'trainmaster_memory_limit_bytes{job_name="a",worker="3"} 4000000000.0',
        'trainmaster_gpu_utilization{job_name="a",worker="3",gpu="1"} 0.25',
    ):
        assert line in lines
    assert not any("memory_bytes{" in line and "state" not in line for line in lines), "what is unknown is left out"


def test_the_warm_processs_own_memory_is_shown_where_there_is_one() -> None:
    without = render_metrics("a", 0, None, {}, None)
    assert 'trainmaster_warm_process{job_name="a",worker="0"} 0\n' in without and "private_bytes" not in without
    text = render_metrics("a", 0, None, {}, 4096)
    assert 'trainmaster_warm_process{job_name="a",worker="0"} 1\n' in text
    assert 'trainmaster_warm_process_private_bytes{job_name="a",worker="0"} 4096\n' in text


def test_the_memory_that_ranks_have_for_their_state_is_shown(tmp_path: Path) -> None:
    own = tmp_path / "user-0"
    own.mkdir()
    (own / "whole.0.memory").write_bytes(bytes(5000))
    (own / "link").symlink_to(tmp_path)
    assert (state_bytes(str(tmp_path)), state_bytes(str(tmp_path / "gone")), state_bytes(None)) == (5000, 0, 0)
    text = render_metrics("a", 0, None, {}, None, 5000)
    assert 'trainmaster_state_memory_bytes{job_name="a",worker="0"} 5000\n' in text

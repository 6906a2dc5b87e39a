"""What Prometheus reads."""

from __future__ import annotations

from trainmaster.agent.network.metrics import render_metrics
from trainmaster.wire.progress import RankProgress
from trainmaster.wire.report import Report


def test_labels_are_escaped_and_unknown_figures_left_out() -> None:
    text = render_metrics('a"b\\c', 3, Report(2, 3, "u", "Running"), {7: RankProgress(step=4, loss=0.5)})
    assert 'trainmaster_attempt{job="a\\"b\\\\c",worker="3"} 2\n' in text
    assert 'trainmaster_loss{job="a\\"b\\\\c",worker="3",rank="7"} 0.5\n' in text
    assert "trainmaster_total_steps" not in text

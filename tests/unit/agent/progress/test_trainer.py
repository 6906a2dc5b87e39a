"""Reports of Hugging Face's Trainer become progress. Everything else is ignored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from tests.unit.hostile_json import JSON
from trainmaster_operator.agent.process.launcher import trainer_environment
from trainmaster_operator.agent.progress.trainer import TrainerReports


def report(percent: Any = None, remaining: Any = None, **metrics: Any) -> dict[str, Any]:
    """Returns a report as transformers 5.24 sends it in `KubeflowCallback._update_status`."""
    status: dict[str, Any] = {"lastUpdatedTime": "2026-11-25T03:00:00+00:00"}
    if percent is not None:
        status["progressPercentage"] = percent
    if remaining is not None:
        status["estimatedRemainingSeconds"] = remaining
    if metrics:
        status["metrics"] = [{"name": name, "value": str(value)} for name, value in metrics.items()]
    return {"trainerStatus": status}


def wire(reports: TrainerReports) -> dict[str, Any]:
    return {} if reports.progress is None else reports.progress.to_wire()


def test_a_training_from_its_beginning_to_its_end() -> None:
    reports = TrainerReports()
    assert reports.receive(report(0, total_steps=60))
    assert wire(reports) == {"totalSteps": 60, "section": "train"}, "so does one that resumes: no step"
    sent = {
        "loss": 1.25,
        "grad_norm": 0.75,
        "learning_rate": 1e-5,
        "current_step": 23,
        "total_steps": 60,
        "current_epoch": 0.05,
    }
    assert reports.receive(report(38, 8, **sent))
    assert wire(reports) == {
        "step": 23,
        "totalSteps": 60,
        "loss": 1.25,
        "gradNorm": 0.75,
        "learningRate": 1e-5,
        "epoch": 0.05,
        "etaSeconds": 8.0,
        "section": "train",
    }
    assert not reports.receive(report(38, 8, **sent)), "the same step is no progress"
    # The Trainer reports 100 % even if it stopped early, so that isn't a step.
    reports.receive(report(100, 0, loss=1.0, train_runtime=12.5))
    assert wire(reports)["step"] == 23 and wire(reports)["etaSeconds"] == 0.0
    assert reports.is_over and wire(reports)["section"] == "finish"
    # A second training in the same process starts again at step 0.
    reports.receive(report(0, total_steps=10))
    assert wire(reports) == {"totalSteps": 10, "section": "train"} and not reports.is_over


def test_a_percentage_alone_is_progress_and_no_step() -> None:
    reports = TrainerReports()
    assert reports.receive(report(10, 90))
    assert reports.receive(report(11, 89))
    assert not reports.receive(report(11, 88))
    assert wire(reports) == {"etaSeconds": 88.0, "section": "train"}


@pytest.mark.parametrize("body", [None, 1, [], {}, {"trainerStatus": None}, {"trainerStatus": [1]}, "x"])
def test_what_is_no_report_is_passed_over(body: Any) -> None:
    reports = TrainerReports()
    assert not reports.receive(body) and reports.progress is None


def test_metrics_that_are_none_are_passed_over() -> None:
    reports = TrainerReports()
    metrics: list[Any] = [1, {"name": 1}, {"name": "loss", "value": "nan"}, {"name": "loss", "value": "1e999"}]
    metrics += [{"name": "current_step", "value": text} for text in ("-1", "1.5", "9" * 70, "1e300", None, [])]
    assert reports.receive({"trainerStatus": {"metrics": metrics, "estimatedRemainingSeconds": "soon"}})
    assert wire(reports) == {"section": "train"}


@given(JSON)
def test_any_json_is_read(value: Any) -> None:
    reports = TrainerReports()
    reports.receive(value)
    reports.receive({"trainerStatus": value})
    reports.receive({"trainerStatus": {"metrics": value, "progressPercentage": value}})
    reports.receive({"trainerStatus": {"metrics": [{"name": "current_step", "value": value}]}})


def test_nothing_is_set_where_the_user_has_the_trainer_report_elsewhere() -> None:
    url, token = "KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN"
    assert trainer_environment(80, "/t", {}) == {url: "http://127.0.0.1:80/v1/trainer-status", token: "/t"}
    assert trainer_environment(80, "/t", {url: "https://mine"}) == {}
    assert trainer_environment(0, "/t", {}) == {}


@pytest.mark.parametrize(
    ("user", "no_proxy"),
    [
        ({}, None),
        ({"HTTPS_PROXY": "http://proxy"}, None),
        ({"HTTP_PROXY": "http://proxy"}, "127.0.0.1"),
        ({"http_proxy": "http://proxy", "NO_PROXY": ".svc"}, ".svc,127.0.0.1"),
        ({"http_proxy": "http://proxy", "no_proxy": "*"}, None),
    ],
)
def test_a_proxy_is_not_asked_for_the_loopback_address(user: dict[str, str], no_proxy: str | None) -> None:
    assert trainer_environment(80, "/t", user).get("no_proxy") == no_proxy

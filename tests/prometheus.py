"""Prometheus' own programs, as Debian has them, and the chart's rules as a file that they read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart

CHART = Path(__file__).resolve().parents[1] / "charts" / "trainmaster"


def program(name: str) -> str:
    """Returns the path of `prometheus` or `promtool`, without which the test fails: nothing else knows PromQL."""
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"{name} isn't installed: apt-get install prometheus", pytrace=False)
    return found


def monitoring(**values: Any) -> list[dict[str, Any]]:
    """Returns what the chart renders for Prometheus and Grafana, with all of it switched on."""
    switched = {
        "podMonitors": {"operator": True, "agents": True},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
    }
    merged = {**switched, **values}
    with Chart.load(str(CHART)) as chart:
        files = chart.render({"monitoring": merged}, name="trainmaster", namespace="trainmaster-system")
    text = files["trainmaster/templates/monitoring.yaml"]
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def rules(**values: Any) -> dict[str, Any]:
    """Returns the PrometheusRule's `spec`, which is Prometheus' own file of rules."""
    (found,) = [one for one in monitoring(**values) if one["kind"] == "PrometheusRule"]
    spec: dict[str, Any] = found["spec"]
    return spec


def alerts(**values: Any) -> dict[str, dict[str, Any]]:
    """Returns the alerts by name."""
    return {rule["alert"]: rule for group in rules(**values)["groups"] for rule in group["rules"]}

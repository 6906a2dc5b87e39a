"""Grafana's dashboards of the chart are `fleet` (all jobs), `job` (one) and `operator`, made of panels by `grafana`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tools.dashboards.fleet import fleet
from tools.dashboards.job import job
from tools.dashboards.operator import operator

MADE: dict[str, Callable[[], dict[str, Any]]] = {"fleet": fleet, "job": job, "operator": operator}


def dashboard_json(name: str) -> str:
    """Returns a dashboard as Grafana imports it."""
    return json.dumps(MADE[name](), indent=1, ensure_ascii=False) + "\n"

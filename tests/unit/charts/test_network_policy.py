"""The chart renders the operator's NetworkPolicy as in the golden files, one for each kind of installation.

`python -m tests.unit.charts.test_network_policy` rewrites them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm_python import Chart

CHART = Path(__file__).resolve().parents[3] / "charts" / "trainmaster"
GOLDEN = Path(__file__).parent / "golden"
INSTALLATIONS: dict[str, dict[str, Any]] = {
    "all-namespaces": {},
    "scraped": {"metrics": {"namespaces": ["monitoring"], "port": 9090}},
    "some-namespaces": {"namespaces": ["team-a", "team-b"]},
    "proxy": {"operator": {"reach": "proxy"}},
    "known-api-server": {
        "networkPolicy": {
            "apiServer": {"cidrs": ["192.0.2.10/32"], "ports": [6443]},
            "extraEgress": [{"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"port": 8472}]}],
        }
    },
}


def policy(values: dict[str, Any]) -> dict[str, Any]:
    switched = {**values, "networkPolicy": {**values.get("networkPolicy", {}), "enabled": True}}
    with Chart.load(str(CHART)) as chart:
        files = chart.render(switched, name="trainmaster", namespace="trainmaster-system")
    rendered: dict[str, Any] = yaml.load(files["trainmaster/templates/network-policy.yaml"], yaml.CSafeLoader)
    return rendered


@pytest.mark.parametrize("name", INSTALLATIONS)
def test_what_the_operator_s_pods_may_talk_to(name: str) -> None:
    rendered = policy(INSTALLATIONS[name])
    assert rendered == yaml.load((GOLDEN / f"network-policy-{name}.yaml").read_text(), yaml.CSafeLoader)
    kubernetes_validate.validate(rendered, "1.36", strict=True)


def test_it_holds_for_the_operator_s_own_pods() -> None:
    with Chart.load(str(CHART)) as chart:
        values = {"networkPolicy": {"enabled": True}}
        files = chart.render(values, name="trainmaster", namespace="trainmaster-system")
    deployment = next(yaml.load_all(files["trainmaster/templates/operator.yaml"], yaml.CSafeLoader))
    selected = policy({})["spec"]["podSelector"]["matchLabels"]
    assert selected.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_there_is_none_unless_it_is_asked_for() -> None:
    with Chart.load(str(CHART)) as chart:
        files = chart.render({}, name="trainmaster", namespace="trainmaster-system")
    assert not yaml.load(files["trainmaster/templates/network-policy.yaml"], yaml.CSafeLoader)


if __name__ == "__main__":
    for each, given in INSTALLATIONS.items():
        (GOLDEN / f"network-policy-{each}.yaml").write_text(yaml.safe_dump(policy(given), sort_keys=False))

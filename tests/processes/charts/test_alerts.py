"""The chart's alerts run under promtool: each fires when it should, with labels and sentence, and otherwise doesn't.

`alerts.yaml` is in promtool's own format (`promtool test rules`); the tests' times are minutes since the epoch.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

from tests.prometheus import alerts, program, rules

CASES = Path(__file__).parent / "alerts.yaml"


def promtool(*arguments: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        [program("promtool"), *arguments], input=stdin, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_are_prometheus(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules()))
    assert f"{len(alerts())} rules found" in promtool("check", "rules", "--lint-fatal", str(tmp_path / "rules.yaml"))


def test_each_alert_fires_when_it_should(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules()))
    (tmp_path / "alerts.yaml").write_text(CASES.read_text())
    promtool("test", "rules", str(tmp_path / "alerts.yaml"))


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_doesnt() -> None:
    cases = [case for test in yaml.safe_load(CASES.read_text())["tests"] for case in test["alert_rule_test"]]
    fires = {case["alertname"] for case in cases if case["exp_alerts"]}
    silent = {case["alertname"] for case in cases if not case["exp_alerts"]}
    assert fires == silent == set(alerts())

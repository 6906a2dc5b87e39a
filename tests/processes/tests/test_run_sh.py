"""tests/run.sh reruns a failed test of real processes once, alone, and names it; a small tree shows that.

Its last lines list how long each stage took, and what was left out.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.processes.tests.small_tree import Cases, run

CLUSTER, TRAINER = "tests/cluster", "tests/trainer"


@pytest.mark.parametrize(
    ("cases", "code", "flaky"),
    [
        pytest.param({CLUSTER: [("a", 1), ("b", 1)]}, 0, ["a", "b"], id="two are flaky"),
        pytest.param(
            {TRAINER: [("a", 1)], "tests/e2e": [("b", 1)], CLUSTER: [("c", 0)]}, 0, ["a", "b"], id="in two stages"
        ),
        pytest.param({"tests/mistakes/cluster": [("a", 1), ("broken", 9)]}, 1, ["a"], id="one fails again"),
        pytest.param(
            {"tests/processes": [("a", 1)], TRAINER: [("b", 1)], CLUSTER: [("c", 1)]},
            1,
            ["a", "b", "c"],
            id="more than two are flaky in all",
        ),
        pytest.param({TRAINER: [(str(number), 1) for number in range(11)]}, 1, [], id="too many failed"),
    ],
)
def test_failed_tests_of_real_processes_run_once_more(
    tmp_path: Path, cases: Cases, code: int, flaky: list[str]
) -> None:
    done = run(tmp_path, cases, "run.sh")
    assert done.returncode == code, done.stdout + done.stderr
    named = [line for line in done.stdout.splitlines() if line.startswith("!!!! FLAKY: ")]
    assert sorted(line.partition("[")[2].partition("-")[0] for line in named) == flaky
    assert ("The run has failed:" in done.stdout) == bool(code)
    failures = {name: count for place in cases.values() for name, count in place}
    tries = {name: int((tmp_path / f"{name}.tries").read_text()) for name in failures}
    assert re.search(r"^\d+ (failed|passed)\b.* in ", done.stdout, re.MULTILINE), "pytest's own last line"
    end = r"^ +\d+ s  cluster \(.*\n(.*\n)* +\d+ s  all\nLeft out: what needs a GPU .*Soaks and repetitions"
    assert re.search(end, done.stdout, re.MULTILINE)
    assert tries == {name: 1 + (count > 0 and len(failures) <= 10) for name, count in failures.items()}


def test_a_cluster_stage_that_does_not_come_to_its_end_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "tests" / "cluster").mkdir(parents=True)
    (tmp_path / "tests" / "cluster" / "test_broken.py").write_text("import a_module_that_is_not_there\n")
    done = run(tmp_path, {CLUSTER: [("sound", 0)]}, "run.sh")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FLAKY" not in done.stdout

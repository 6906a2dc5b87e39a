"""tests/flaky.sh names each cluster test that failed, with its round; a small tree shows that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.tests.small_tree import run


@pytest.mark.parametrize(
    ("cases", "failed"),
    [
        pytest.param([("sound", 0)], [], id="none"),
        pytest.param(
            [("sound", 0), ("a", 1), ("broken", 9)], ["round 1: a", "round 1: broken", "round 2: broken"], id="two"
        ),
    ],
)
def test_failures_are_named_with_their_rounds(tmp_path: Path, cases: list[tuple[str, int]], failed: list[str]) -> None:
    done = run(tmp_path, {"tests/cluster": cases}, "flaky.sh", "2")
    assert done.returncode == (1 if failed else 0), done.stdout + done.stderr
    _, _, summary = done.stdout.partition("== failed in 2 rounds: ")
    count, *lines = summary.splitlines()
    path = "tests/cluster/test_flaky.py::test_fails["
    assert int(count) == len(failed)
    assert sorted(line.replace(path, "").partition("-")[0] for line in lines) == failed
    assert {path.stem: int(path.read_text()) for path in tmp_path.glob("*.tries")} == {name: 2 for name, _ in cases}

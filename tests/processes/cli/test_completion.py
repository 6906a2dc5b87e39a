"""Tab completion of `kubectl dtj`, asked for as a shell asks: through kubectl itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["sta"], ["status", "stacks"]),
        (["wait", "--for", "s"], ["suspended", "starting", "succeeded"]),
        (["logs", "--kubeconfig", "/nowhere", ""], []),
    ],
    ids=" ".join,
)
def test_kubectl_completes_the_plugin_s_words(words: list[str], wanted: list[str]) -> None:
    done = subprocess.run(
        [BIN / "kubectl", "__complete", "dtj", *words],
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    *found, directive = done.stdout.splitlines()
    assert [line.partition("\t")[0] for line in found] == wanted
    assert directive == ":4"


def test_every_option_is_completed_with_its_help() -> None:
    done = subprocess.run([BIN / "kubectl_complete-dtj", "wait", "--t"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["--timeout\tTime to wait at most: seconds, or 30s, 5m.", ":4"]

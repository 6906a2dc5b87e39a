"""Tab completion of `kubectl dtj` is requested as a shell does it, through kubectl itself."""

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
        (["wait", "--for", "s"], ["suspending", "suspended", "starting", "succeeded"]),
        (["logs", "--kubeconfig", "/nowhere", ""], []),
        (["history", "--kubeconfig", "/nowhere", ""], []),
        (["history", "bert", "--format", "p"], ["parquet"]),
        (["status", "--kubeconfig", "/nowhere", "--context", ""], []),
        (["status", "--context", "p"], ["prod", "playground"]),
        (["--context", "t"], ["test"]),
        (["status", "--cluster", ""], ["east"]),
        (["status", "--user", "a"], ["ann"]),
    ],
    ids=" ".join,
)
def test_kubectl_completes_the_plugin_s_words(words: list[str], wanted: list[str], tmp_path: Path) -> None:
    found, directive = completed(tmp_path, words)
    assert (found, directive) == (wanted, ":4")


@pytest.mark.parametrize(
    "words",
    [
        ["submit", "jo"],
        ["submit", "--filename", ""],
        ["submit", "--code", ""],
        ["push", "job", ""],
        ["validate", "job.yaml", ""],
        ["init", ""],
        ["history", "bert", "--export", ""],
        ["history", "--history-ca", ""],
        ["status", "--kubeconfig", ""],
    ],
    ids=" ".join,
)
def test_paths_are_left_to_the_shell(words: list[str], tmp_path: Path) -> None:
    """With Cobra's ShellCompDirectiveDefault the shell completes files if there are no choices."""
    assert completed(tmp_path, words) == ([], ":0")


KUBECONFIG = """\
contexts:
- {name: prod, context: {cluster: east, user: ann}}
- {name: test, context: {cluster: east, user: bob}}
- {name: playground, context: {cluster: east, user: bob}}
clusters: [{name: east, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: ann, user: {}}, {name: bob, user: {}}]
current-context: prod
"""


def completed(folder: Path, words: list[str]) -> tuple[list[str], str]:
    """Returns kubectl's completions of the last word, and the directive."""
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    done = subprocess.run(
        [BIN / "kubectl", "__complete", "dtj", *words],
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "KUBECONFIG": str(kubeconfig)},
        capture_output=True,
        text=True,
        check=True,
    )
    *found, directive = done.stdout.splitlines()
    return [line.partition("\t")[0] for line in found], directive


def test_every_option_is_completed_with_its_help() -> None:
    done = subprocess.run([BIN / "kubectl_complete-dtj", "wait", "--t"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["--timeout\tWait at most this long: seconds, or 30s, 5m.", ":4"]

"""A kubeconfig that is none ends every program that needs a cluster with one sentence and exit code 1."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
OPERATOR = ("operator", "run", "--all-namespaces", "--metrics-port", "0")
UNLOADABLE = """
current-context: a
contexts: [{name: a, context: {cluster: a}}]
clusters: [{name: a, cluster: {server: "https://a:1", certificate-authority-data: QUFB}}]
"""
KEYS = ("operator", "keys", "rotate")


@pytest.mark.parametrize(
    ("program", "arguments"), [("kubectl-dtj", ("status",)), ("trainmaster", OPERATOR), ("trainmaster", KEYS)]
)
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("root:x:0:0:root:/root:/bin/bash\n", "holds no clusters, contexts and users"),
        ("clusters: [", "not YAML at line 1"),
        ("", "is empty"),
        (UNLOADABLE, "certificate-authority: holds no certificate that can be loaded"),
        ("current-context: gone\n", "current-context: 'gone' is not among its contexts: none"),
    ],
)
def test_what_is_no_kubeconfig_is_one_sentence(
    tmp_path: Path, program: str, arguments: tuple[str, ...], text: str, sentence: str
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    done = subprocess.run(
        [BIN / program, *arguments],
        env={**os.environ, "KUBECONFIG": str(path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert f"kubeconfig {path}: {sentence}" in done.stderr

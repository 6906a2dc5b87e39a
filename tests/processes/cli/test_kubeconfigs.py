"""An invalid kubeconfig ends every program that needs a cluster with one sentence and exit code 1.

tests/unit/kubeconfig tests the sentence for each of many mistakes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
STATUS = ("kubectl-dtj", "status")
OPERATOR = ("trainmaster", "operator", "run", "--all-namespaces")
KEYS = ("trainmaster", "operator", "keys", "rotate")
UNLOADABLE = """
current-context: a
contexts: [{name: a, context: {cluster: a}}]
clusters: [{name: a, cluster: {server: "https://a:1", certificate-authority-data: QUFB}}]
"""
NO_CERTIFICATE = "certificate-authority: holds no certificate that can be loaded"


@pytest.mark.parametrize(
    ("command", "text", "sentence"),
    [
        (STATUS, "root:x:0:0:root:/root:/bin/bash\n", "holds no clusters, contexts and users"),
        (OPERATOR, "clusters: [", "not YAML at line 1"),
        (KEYS, "", "is empty"),
        (OPERATOR, "current-context: gone\n", "current-context: 'gone' is not among its contexts: none"),
        *((command, UNLOADABLE, NO_CERTIFICATE) for command in (STATUS, OPERATOR, KEYS)),
    ],
)
def test_what_is_no_kubeconfig_is_one_sentence(
    tmp_path: Path, command: tuple[str, ...], text: str, sentence: str
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    program, *arguments = command
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

"""`kubectl dtj` and `trainmaster operator` as processes on the cluster: what a person sees, and the exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import certifi
import pytest
import yaml

from trainmaster_local.testing.clusters import Cluster

BIN = Path(sys.executable).parent
OPERATOR = ("operator", "run", "--all-namespaces", "--metrics-port", "0")


def command(program: str, *arguments: str, kubeconfig: Path, path: Path | None = None) -> tuple[int, str, str]:
    """Runs one of our programs until it ends; returns its exit code, stdout and stderr."""
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "COLUMNS": "80"}
    if path is not None:
        environment["PATH"] = f"{path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [BIN / program, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


def changed_kubeconfig(cluster: Cluster, folder: Path, *, cluster_fields: object = None, user: object = None) -> Path:
    """The cluster's kubeconfig, with other fields of the cluster or another user."""
    document = yaml.safe_load(cluster.kubeconfig.read_text())
    if isinstance(cluster_fields, dict):
        entry = document["clusters"][0]["cluster"]
        entry.pop("certificate-authority-data", None)
        entry |= cluster_fields
    if user is not None:
        document["users"][0]["user"] = user
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize(("program", "arguments"), [("kubectl-dtj", ("status",)), ("trainmaster", OPERATOR)])
def test_a_kubeconfig_with_the_authority_of_another_cluster_is_one_sentence(
    cluster: Cluster, tmp_path: Path, program: str, arguments: tuple[str, ...]
) -> None:
    wrong = changed_kubeconfig(cluster, tmp_path, cluster_fields={"certificate-authority": certifi.where()})
    code, output, errors = command(program, *arguments, kubeconfig=wrong)
    assert (code, output) == (1, "")
    assert "Traceback" not in errors
    assert "unable to get local issuer certificate" in errors.splitlines()[-1]


@pytest.mark.parametrize(("program", "arguments"), [("kubectl-dtj", ("status",)), ("trainmaster", OPERATOR)])
def test_a_plugin_that_isnt_installed_is_named_and_nobody_goes_on_as_nobody(
    cluster: Cluster, tmp_path: Path, program: str, arguments: tuple[str, ...]
) -> None:
    plugin = {"exec": {"command": "cloud-login", "apiVersion": "client.authentication.k8s.io/v1"}}
    path = changed_kubeconfig(cluster, tmp_path, user=plugin)
    code, output, errors = command(program, *arguments, kubeconfig=path)
    assert (code, output, len(errors.splitlines())) == (1, "", 1)
    assert "exec.command: the plugin 'cloud-login' isn't installed; install it" in errors

"""The operator runs as a user starts it, by its command's arguments: a separate process, for one namespace of the test
cluster, with the chart's rights.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.cluster.forkserver import context, trainmaster
from tests.cluster.operator_account import HOME, operator_kubeconfig
from trainmaster_local.testing.clusters import Cluster

STOP_SECONDS = 60.0
_CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/distributedtrainingjobs.trainmaster.dev"
# By the server's address.
_installed: dict[str, tuple[str, int]] = {}


@dataclass
class OperatorProcess:
    """Runs an operator that can be started, stopped with SIGTERM, or killed; its log is in `log`."""

    cluster: Cluster
    log: Path
    arguments: Sequence[str] = ()
    process: BaseProcess | None = field(default=None, init=False)

    def start(self) -> None:
        kubeconfig = operator_kubeconfig(self.cluster.kubeconfig, self.log.parent)
        options = ["--namespace", self.cluster.namespace, "--kubeconfig", str(kubeconfig), "--lease-namespace", HOME]
        options += ["--no-leader-elect", *self.arguments]
        before = self.log.stat().st_size if self.log.exists() else 0
        self.process = context.Process(target=trainmaster, args=(["operator", "run", *options], self.log), daemon=True)
        self.process.start()
        deadline = time.monotonic() + 90
        while not self.log.exists() or b"Serving" not in self.log.read_bytes()[before:]:
            if not self.process.is_alive() or time.monotonic() > deadline:
                raise AssertionError(f"the operator didn't start:\n{self.text()}")
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill it, as when its node dies."""
        if self.process is not None:
            self.process.kill()
            self.process.join()

    def stop(self) -> None:
        """Stop it, as when its Deployment is scaled down."""
        if self.process is None:
            return
        self.process.terminate()
        self.process.join(STOP_SECONDS)
        if self.process.is_alive():
            self.kill()
            raise AssertionError(f"the operator didn't end within {STOP_SECONDS:.0f} s:\n{self.text()}")

    def is_alive(self) -> bool:
        return self.process is not None and self.process.is_alive()

    def text(self) -> str:
        return self.log.read_text()


def install_crd(cluster: Cluster) -> None:
    """Installs the custom resource, and waits until it is served.

    Applying such a large object takes long, so nothing is done if it is unchanged since the last call.
    """
    if cluster.server not in _installed or _installed[cluster.server] != _served(cluster):
        apply_crd(cluster)
        _installed[cluster.server] = cluster.eventually(lambda: _served(cluster), 60, "established")


def apply_crd(cluster: Cluster) -> None:
    """Applies the custom resource's definition as users do."""
    from trainmaster_operator.api.crd import crd_yaml

    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=crd_yaml())


def _served(cluster: Cluster) -> tuple[str, int] | None:
    """Returns which custom resource is served: its uid, and the generation, which a change of its spec increases."""
    status, found = cluster.request("GET", _CRD)
    # A new definition has `conditions: null` for a moment.
    conditions = (found["status"].get("conditions") or []) if status == 200 else []
    if not any(one["type"] == "Established" and one["status"] == "True" for one in conditions):
        return None
    return found["metadata"]["uid"], found["metadata"]["generation"]


@contextmanager
def running_operator(cluster: Cluster, folder: Path, *arguments: str) -> Iterator[OperatorProcess]:
    """Starts an operator for the cluster's namespace, with the custom resource installed."""
    install_crd(cluster)
    operator = OperatorProcess(cluster, folder / "operator.log", arguments)
    operator.start()
    try:
        yield operator
    finally:
        operator.stop()
        # Shown by pytest when the test fails.
        print(operator.text())


def training_job(name: str, script: str, *, workers: int = 2, **spec: Any) -> dict[str, Any]:
    """Returns a job whose ranks run a small Python script, one per worker."""
    return {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name},
        "spec": {
            "image": "ghcr.io/trainmaster/trainer:0.1.0",
            "workers": workers,
            "launcher": "exec",
            "command": ["python3", "-c", script],
            **spec,
        },
    }


def status(cluster: Cluster, name: str = "job") -> dict[str, Any]:
    """Returns the job's status."""
    return dict(cluster.get("dtj", name).get("status") or {})


def condition(cluster: Cluster, kind: str, name: str = "job") -> dict[str, Any]:
    """Returns one condition of the job; empty if it is missing."""
    found = [item for item in status(cluster, name).get("conditions", []) if item["type"] == kind]
    return dict(found[0]) if found else {}

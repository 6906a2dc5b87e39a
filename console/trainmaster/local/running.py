"""An embedded cluster with the operator runs for the length of a `with` block."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from trainmaster.client import ClientError, HttpTransport, find_server
from trainmaster_operator.api.v1alpha1 import GROUP, PLURAL

OPERATOR_STOP_SECONDS = 10.0
ESTABLISHED_SECONDS = 20.0
POLL_SECONDS = 0.02


class NotRunning(ClientError):
    """The cluster or the operator can't be started, or has ended; the text says why, and what to do."""


@dataclass(frozen=True)
class RunningCluster:
    """RunningCluster is a cluster with its operator."""

    kubeconfig: Path
    server: str
    operator: subprocess.Popen[bytes]
    operator_log: Path
    # Until the API server answered.
    start_seconds: float

    def require_operator(self) -> None:
        """Raises NotRunning where the operator has ended."""
        if self.operator.poll() is not None:
            raise NotRunning(f"The operator ended with {self.operator.returncode}: see {self.operator_log}.")


@contextmanager
def running_cluster(
    folder: Path, *, nodes: int = 1, gpus: int | None = None, operator_options: Sequence[str] = ()
) -> Iterator[RunningCluster]:
    """Starts a cluster in a folder of its own and the operator, and stops both at the end, also on exceptions.

    Other users of the machine can't enter the folder: secrets and programs are in it.

    The nodes share out the machine's GPUs, or have `gpus` each; `operator_options` are further ones of `operator run`.
    Raises NotRunning.
    """
    if find_spec("trainmaster_local") is None:
        raise NotRunning("The embedded cluster isn't installed: pip install 'trainmaster[local]'.")
    from trainmaster.local.images import CONFIGURE
    from trainmaster_local import cluster

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    state = folder / "cluster"
    began = time.monotonic()
    try:
        info = cluster.up(state, nodes=nodes, gpus=gpus, detach=True, configure=CONFIGURE)
    except cluster.LocalClusterError as error:
        raise NotRunning(f"{error}.") from error
    try:
        seconds = time.monotonic() - began
        _install(info.kubeconfig)
        log = folder / "operator.log"
        with _operator(info.kubeconfig, log, operator_options) as process:
            yield RunningCluster(info.kubeconfig, info.server, process, log, seconds)
    finally:
        cluster.down(state)


def _install(kubeconfig: Path) -> None:
    """Applies the custom resource, and waits until it is served."""
    from trainmaster_operator.api.crd import crd

    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.{GROUP}"
    transport = HttpTransport(find_server(str(kubeconfig)))
    query = {"fieldManager": "trainmaster", "force": "true"}
    transport.request("PATCH", path, query=query, body=crd(), content_type="application/apply-patch+yaml")
    deadline = time.monotonic() + ESTABLISHED_SECONDS
    while True:
        conditions = (transport.request("GET", path).get("status") or {}).get("conditions") or []
        if any(each.get("type") == "Established" and each.get("status") == "True" for each in conditions):
            return
        if time.monotonic() > deadline:
            raise NotRunning(f"The custom resource isn't served after {ESTABLISHED_SECONDS:g} s.")
        time.sleep(POLL_SECONDS)


@contextmanager
def _operator(kubeconfig: Path, log: Path, further: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the operator as a user would start it."""
    from trainmaster_local.cluster import interrupted_later

    command = [sys.executable, "-m", "trainmaster.cli.main", "operator", "run"]
    options = ["--kubeconfig", str(kubeconfig), "--all-namespaces", "--no-leader-elect", "--metrics-port=0", *further]
    process: subprocess.Popen[bytes] | None = None
    with log.open("wb") as output:
        try:
            with interrupted_later():
                # A session of its own: Ctrl-C at the terminal reaches this program, which stops the operator in its own
                # order.
                process = subprocess.Popen([*command, *options], stdout=output, stderr=output, start_new_session=True)
            yield process
        finally:
            if process is not None:
                process.terminate()
                try:
                    process.wait(OPERATOR_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

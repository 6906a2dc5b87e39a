"""Clusters for pytest: the embedded one, a kube-apiserver alone, or any that a kubeconfig names, and kubectl on them.

    with open_cluster(ClusterConfig(state_dir=folder)) as shared, new_namespace(shared) as cluster:
        cluster.kubectl("get", "pods")

A suite makes fixtures of the two; what only some of the clusters can show is skipped with its reason.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainmaster_local.config import ClusterConfig
from trainmaster_local.embedded import ThreadedCluster
from trainmaster_local.testing.apiserver_binaries import ApiServerBinaries

KUBECTL = Path(sys.executable).with_name("kubectl")


class KubectlFailed(AssertionError):
    """A kubectl that had to succeed didn't; where `eventually` looks, that means: not yet."""


@dataclass(frozen=True)
class SharedCluster:
    """A running cluster. `token` is the administrator's; empty where that is who has the client `certificate`, a file
    with its key."""

    kubeconfig: Path
    server: str
    token: str
    authority: bytes
    embedded: ThreadedCluster | None = None
    runs_pods: bool = True
    certificate: Path | None = None

    @property
    def tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self.authority:
            context.load_verify_locations(cadata=self.authority.decode())
        if self.certificate is not None:
            context.load_cert_chain(self.certificate)
        return context

    @property
    def headers(self) -> dict[str, str]:
        """Returns what a request needs to be the administrator's, beside `tls`."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


@dataclass(frozen=True)
class Cluster:
    """A test's own namespace in the shared cluster."""

    shared: SharedCluster
    namespace: str

    @property
    def kubeconfig(self) -> Path:
        return self.shared.kubeconfig

    @property
    def server(self) -> str:
        return self.shared.server

    @property
    def embedded(self) -> ThreadedCluster:
        """The embedded cluster; a test that asks for it is skipped on any other."""
        if self.shared.embedded is None:
            pytest.skip("needs the embedded cluster's faults or nodes")
        return self.shared.embedded

    def kubectl(
        self, *arguments: str, check: bool = True, stdin: str | None = None, timeout: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs kubectl in the namespace. `check`: fails the test when it does."""
        done = subprocess.run(
            [str(KUBECTL), "--namespace", self.namespace, *arguments],
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            said = f"{done.stderr}{done.stdout}"
            raise KubectlFailed(f"kubectl {' '.join(arguments)} exited with {done.returncode}:\n{said}")
        return done

    def apply(self, *objects: dict[str, Any]) -> None:
        """Applies manifests."""
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def get(self, resource: str, name: str) -> dict[str, Any]:
        """An object as JSON."""
        found: dict[str, Any] = json.loads(self.kubectl("get", resource, name, "-o", "json").stdout)
        return found

    def items(self, resource: str, *arguments: str) -> list[dict[str, Any]]:
        """The namespace's objects of a resource."""
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", resource, "-o", "json", *arguments).stdout)[
            "items"
        ]
        return found

    def request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", timeout: float = 30.0
    ) -> tuple[int, Any]:
        """One HTTP request as the administrator: status and decoded body (text where it isn't JSON)."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server + path, data=data, method=method, headers=self.shared.headers)
        if data is not None:
            request.add_header("Content-Type", content_type)
        try:
            with urllib.request.urlopen(request, timeout=timeout, context=self.shared.tls) as answer:
                return answer.status, _decoded(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, _decoded(error.read())

    def eventually(self, check: Callable[[], Any], seconds: float = 60.0, what: str = "") -> Any:
        """Waits until `check` gives something true, and gives it back. An AssertionError in it means: not yet; so does
        an object that isn't there, which is between a pod and its successor.
        """
        deadline = time.monotonic() + seconds
        problem: AssertionError | None = None
        while time.monotonic() < deadline:
            try:
                found = check()
                if found:
                    return found
            except AssertionError as error:
                problem = error
            time.sleep(0.05)
        pytest.fail(f"not within {seconds:.0f} s: {what or check}" + (f": {problem}" if problem else ""))


def _decoded(data: bytes) -> Any:
    text = data.decode()
    return json.loads(text) if text.startswith(("{", "[")) else text


def given_cluster(path: Path, folder: Path) -> SharedCluster:
    """The cluster of a kubeconfig's current context. Its user has a token, or a certificate as kind's has."""
    config = yaml.safe_load(path.read_text())
    context = next(c["context"] for c in config["contexts"] if c["name"] == config["current-context"])
    cluster = next(c["cluster"] for c in config["clusters"] if c["name"] == context["cluster"])
    user = next(u["user"] for u in config["users"] if u["name"] == context["user"])

    def pem(owner: dict[str, str], name: str) -> bytes:
        """Returns what is given in place, or in a file beside the kubeconfig."""
        if name in owner:
            return (path.parent / owner[name]).read_bytes()
        return base64.b64decode(owner.get(f"{name}-data", ""))

    token, certificate = user.get("token", ""), None
    if "tokenFile" in user:
        token = (path.parent / user["tokenFile"]).read_text().strip()
    if pem(user, "client-certificate"):
        certificate = folder / "client.pem"
        certificate.touch(mode=0o600)
        certificate.write_bytes(pem(user, "client-certificate") + b"\n" + pem(user, "client-key"))
    return SharedCluster(path, cluster["server"], token, pem(cluster, "certificate-authority"), certificate=certificate)


@contextmanager
def open_cluster(
    config: ClusterConfig, *, kubeconfig: Path | None = None, assets: Path | None = None
) -> Iterator[SharedCluster]:
    """Opens the cluster of a kubeconfig's current context, a kube-apiserver and etcd from a folder of assets, or, with
    neither, starts an embedded one by `config`. Files go to the configuration's state folder."""
    if kubeconfig is not None:
        yield given_cluster(kubeconfig, config.state_dir)
    elif assets is not None:
        with ApiServerBinaries(assets, config.state_dir) as started:
            yield SharedCluster(started.kubeconfig, started.server, started.token, started.authority, runs_pods=False)
    else:
        with ThreadedCluster(config) as threaded:
            local = threaded.cluster
            authority = base64.b64decode(local.authority)
            yield SharedCluster(local.kubeconfig, local.server, local.token, authority, threaded)


@contextmanager
def new_namespace(shared: SharedCluster) -> Iterator[Cluster]:
    """The shared cluster, in a namespace of its own, which is deleted afterwards."""
    made = Cluster(shared, f"test-{uuid.uuid4().hex[:10]}")
    made.kubectl("create", "namespace", made.namespace)
    if shared.runs_pods:
        made.eventually(
            lambda: made.kubectl("get", "serviceaccount", "default", check=False).returncode == 0, 60, "service account"
        )
    try:
        yield made
    finally:
        if shared.embedded is not None:
            shared.embedded.cluster.faults.clear()
        made.kubectl("delete", "namespace", made.namespace, "--wait=false")

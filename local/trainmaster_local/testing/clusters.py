"""This plug-in of pytest gives each test a namespace in its suite's shared cluster, and kubectl on it.

A suite loads it (`pytest_plugins = ["trainmaster_local.testing.clusters"]`) and opens its cluster in a fixture of the
session, `shared_cluster`:

    with open_cluster(suite_config(folder)) as opened:
        yield opened

Its tests then request `cluster`, a namespace of their own. Tests that only some clusters support are skipped with a
reason (`SharedCluster.needs_embedded`).
"""

from __future__ import annotations

import base64
import gc
import os
import ssl
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import pytest
import yaml

from trainmaster_local.config import ClusterConfig, KubeletTimings, NodeConfig, NodeTimings
from trainmaster_local.testing.administrator import Administrator

if TYPE_CHECKING:
    from trainmaster_local.embedded import ThreadedCluster

KUBECTL = Path(sys.executable).with_name("kubectl")


class KubectlFailed(AssertionError):
    """A kubectl command that had to succeed failed; `eventually` treats this as "not yet"."""


class NotAnswered(AssertionError):
    """The object doesn't exist. `eventually` treats this as "not yet"."""


class Refused(AssertionError):
    """A write that had to succeed failed; `eventually` treats this as "not yet"."""


@dataclass(frozen=True)
class SharedCluster:
    """The suite shares a running cluster.

    `token` is the administrator's. If it is empty, the client `certificate` (a file that includes the key) is used.
    """

    kubeconfig: Path
    server: str
    token: str
    authority: bytes
    embedded: ThreadedCluster | None = None
    runs_pods: bool = True
    certificate: Path | None = None

    @cached_property
    def tls(self) -> ssl.SSLContext:
        # Without an authority, all of the machine's authorities are loaded, which takes long.
        context = ssl.create_default_context(cadata=self.authority.decode() or None)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate)
        return context

    @property
    def headers(self) -> dict[str, str]:
        """Returns the headers that, together with `tls`, identify the administrator."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def needs_embedded(self, reason: str) -> ThreadedCluster:
        """Returns the embedded cluster; on any other the test is skipped for this reason."""
        if self.embedded is None:
            pytest.skip(f"only on the embedded cluster: {reason}")
        return self.embedded

    @cached_property
    def administrator(self) -> Administrator:
        return Administrator(self.server, self.headers, self.tls)


# kubectl ends before its memory matters, and garbage collection would be a third of its work.
KUBECTL_ENVIRONMENT = {"GOGC": "off"}
# Seconds between two checks of a test's condition; each check costs the API server time.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.03, 0.2


@dataclass(frozen=True)
class Cluster:
    """Each test has its own namespace in the shared cluster."""

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
        """Returns the embedded cluster; a test that requests it is skipped on any other."""
        return self.shared.needs_embedded("a test makes its faults or nodes")

    def kubectl(
        self, *arguments: str, check: bool = True, stdin: str | None = None, timeout: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs kubectl in the namespace. With `check`, a failure fails the test."""
        done = subprocess.run(
            [str(KUBECTL), "--namespace", self.namespace, *arguments],
            env={**os.environ, **KUBECTL_ENVIRONMENT, "KUBECONFIG": str(self.kubeconfig)},
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
        """Applies manifests as `kubectl apply --server-side --force-conflicts` does, without its process."""
        for manifest in objects:
            path = self.shared.administrator.path_of(manifest, self.namespace)
            if path is None:
                raise NotAnswered(f"no API has a kind {manifest['kind']} in {manifest['apiVersion']}")
            query = "?fieldManager=kubectl&force=true&fieldValidation=Strict"
            self._carried_out("PATCH", path + query, manifest, "application/apply-patch+yaml")

    def patch(self, resource: str, name: str, body: dict[str, Any], *, subresource: str = "") -> None:
        """Merges JSON into an object, as `kubectl patch --type=merge` does."""
        rest = f"/{subresource}" if subresource else ""
        self._carried_out("PATCH", self._path(resource, name) + rest, body, "application/merge-patch+json")

    def scale(self, resource: str, name: str, replicas: int) -> None:
        """Sets the number of replicas by the resource's scale subresource, as `kubectl scale` does."""
        self.patch(resource, name, {"spec": {"replicas": replicas}}, subresource="scale")

    def delete(
        self, resource: str, *names: str, wait: bool = True, grace: int | None = None, missing_ok: bool = False
    ) -> None:
        """Deletes objects as `kubectl delete` does, and waits until they are gone.

        `grace` is in seconds; 0 means `--force --grace-period=0`, and `missing_ok` means `--ignore-not-found`.
        """
        body: dict[str, Any] = {"propagationPolicy": "Background"}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        paths = [self._path(resource, name) for name in names]
        before = {path: self._uid(path) for path in paths} if wait else {}
        for path in paths:
            self._carried_out("DELETE", path, body, missing_ok=missing_ok)
        if wait:
            self.eventually(lambda: not any(uid and self._uid(path) == uid for path, uid in before.items()), 120)

    def _uid(self, path: str) -> str:
        """Returns an object's uid; empty if it doesn't exist."""
        status, answer = self.request("GET", path)
        return str(answer["metadata"]["uid"]) if status == 200 else ""

    def _path(self, resource: str, name: str) -> str:
        return f"{self._collection(resource)}/{quote(name)}"

    def _collection(self, resource: str) -> str:
        path = self.shared.administrator.path(resource, self.namespace)
        if path is None:
            raise NotAnswered(f"no API has a resource {resource}")
        return path

    def _carried_out(
        self, method: str, path: str, body: Any, content_type: str = "application/json", *, missing_ok: bool = False
    ) -> None:
        status, answer = self.request(method, path, body, content_type)
        if status >= 300 and not (missing_ok and status == 404):
            said = answer.get("message") if isinstance(answer, dict) else answer
            raise Refused(f"{method} {path} was answered with {status}: {said}")

    def get(self, resource: str, name: str) -> dict[str, Any]:
        """Returns an object, by a name of its resource that kubectl knows."""
        return self._read(resource, f"/{quote(name)}")

    def items(self, resources: str, *, labels: str = "", fields: str = "") -> list[dict[str, Any]]:
        """Returns the namespace's objects of a resource, or of several separated by commas, by kubectl's selectors."""
        query = "?" + urlencode({"labelSelector": labels, "fieldSelector": fields})
        found: list[dict[str, Any]] = []
        for resource in resources.split(","):
            listed = self._read(resource, query)
            # An API server omits the fields that are equal in all of a list's items.
            kind = {"apiVersion": listed["apiVersion"], "kind": listed["kind"].removesuffix("List")}
            found += [{**kind, **item} for item in listed["items"]]
        return found

    def log(self, pod: str, container: str = "") -> str:
        """Returns a container's output; empty if there is no pod or it hasn't started."""
        query = urlencode({"container": container}) if container else ""
        status, text = self.request("GET", f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log?{query}")
        return str(text) if status == 200 else ""

    def request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> tuple[int, Any]:
        """Sends one HTTP request as the administrator; returns status and decoded body (text if it isn't JSON)."""
        return self.shared.administrator.request(method, path, body, content_type)

    def _read(self, resource: str, rest: str) -> dict[str, Any]:
        try:
            path = self._collection(resource)
            status, found = self.request("GET", path + rest)
        except (OSError, HTTPException) as error:
            raise NotAnswered(f"{resource}{rest} wasn't answered: {error}") from error
        if status != 200:
            raise NotAnswered(f"GET {path}{rest} was answered with {status}: {found}")
        return dict(found)

    def eventually(self, check: Callable[[], Any], seconds: float = 60.0, what: str = "") -> Any:
        """Waits until `check` returns something true, and returns it.

        An AssertionError in `check` means "not yet". So does a missing object, as between a pod and its successor.
        """
        deadline = time.monotonic() + seconds
        problem: AssertionError | None = None
        pause = _SHORTEST_PAUSE
        while time.monotonic() < deadline:
            try:
                found = check()
                if found:
                    return found
            except AssertionError as error:
                problem = error
            time.sleep(pause)
            pause = min(1.2 * pause, _LONGEST_PAUSE)
        pytest.fail(f"not within {seconds:.0f} s: {what or check}" + (f": {problem}" if problem else ""))


def given_cluster(path: Path, folder: Path) -> SharedCluster:
    """Returns the cluster of a kubeconfig's current context. Its user has a token, or a certificate as in kind."""
    config = yaml.safe_load(path.read_text())
    context = next(c["context"] for c in config["contexts"] if c["name"] == config["current-context"])
    cluster = next(c["cluster"] for c in config["clusters"] if c["name"] == context["cluster"])
    user = next(u["user"] for u in config["users"] if u["name"] == context["user"])

    def pem(owner: dict[str, str], name: str) -> bytes:
        """Returns the inline value, or the content of a file beside the kubeconfig."""
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


def suite_config(folder: Path) -> ClusterConfig:
    """Returns the configuration of a suite's cluster: a large node, and timings that a test can wait for.

    The back-off is a twentieth of Kubernetes': 10 s become 0.5 s, in the same order and with the same messages.
    """
    return ClusterConfig(
        state_dir=folder,
        nodes=(NodeConfig(cpu="64", memory="64Gi", pods=1000, resources={"nvidia.com/gpu": 8}),),
        kubelet=KubeletTimings(backoff_scale=0.05),
        node_timings=NodeTimings(
            lease_seconds=0.5, monitor_grace_seconds=2.0, monitor_seconds=0.25, orphan_seconds=1.0
        ),
    )


@contextmanager
def open_cluster(config: ClusterConfig, kubeconfig: str | None = None) -> Iterator[SharedCluster]:
    """Opens the suite's cluster; its files are in the configuration's state folder.

    - With `kubeconfig` it is the cluster of that file's current context.
    - With KUBEBUILDER_ASSETS it is the kube-apiserver and etcd in that folder: no controllers and no nodes, so tests
      that need pods to run are skipped there.
    - By default it is an embedded one by `config`, on a thread of this process; `Cluster.embedded` reaches its faults
      and nodes.
    """
    # Every process of pytest imports this plug-in, and most of them open no cluster.
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if kubeconfig:
        yield given_cluster(Path(kubeconfig), config.state_dir)
    elif assets:
        from trainmaster_local.testing.apiserver_binaries import ApiServerBinaries

        with ApiServerBinaries(Path(assets), config.state_dir) as started:
            yield SharedCluster(started.kubeconfig, started.server, started.token, started.authority, runs_pods=False)
    else:
        from trainmaster_local.embedded import ThreadedCluster

        _spare_the_collector()
        with ThreadedCluster(config) as threaded:
            local = threaded.cluster
            authority = base64.b64decode(local.authority)
            yield SharedCluster(local.kubeconfig, local.server, local.token, authority, threaded)


def _spare_the_collector() -> None:
    """Excludes imported and already collected objects from garbage collection, a sixth of an API server's work here."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@contextmanager
def new_namespace(shared: SharedCluster) -> Iterator[Cluster]:
    """Yields the shared cluster in a new namespace, which is deleted afterwards."""
    made = Cluster(shared, f"test-{uuid.uuid4().hex[:10]}")
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": made.namespace}}
    status, answer = made.request("POST", "/api/v1/namespaces", body)
    assert status == 201, answer
    if shared.runs_pods:
        made.eventually(lambda: made.get("serviceaccount", "default"), 60, "service account")
    try:
        yield made
    finally:
        if shared.embedded is not None:
            shared.embedded.cluster.faults.clear()
        status, answer = made.request("DELETE", f"/api/v1/namespaces/{made.namespace}")
        assert status == 200, answer


@pytest.fixture
def cluster(shared_cluster: SharedCluster) -> Iterator[Cluster]:
    """Yields the suite's cluster, in the test's own namespace."""
    with new_namespace(shared_cluster) as made:
        yield made


@pytest.fixture(scope="session")
def pods_run(shared_cluster: SharedCluster) -> None:
    """Skips tests that need running pods if the cluster runs none."""
    if not shared_cluster.runs_pods:
        pytest.skip("a kube-apiserver alone runs no pods")


@pytest.fixture
def pods_folder(shared_cluster: SharedCluster, tmp_path: Path) -> Path:
    """Returns a folder of this machine that the test's pods see too."""
    shared_cluster.needs_embedded("its pods and the test wait for each other by files of this machine")
    return tmp_path

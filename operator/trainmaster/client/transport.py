"""Requests go to the API server with raw dicts, over the official client's connection and authentication.

The typed models of the official client add nothing for a custom resource and cost time at import and in decoding, so
only its `ApiClient` (kubeconfig, exec plugins, TLS, tokens, proxies) is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import urllib3
from kubernetes import client as kubernetes_client
from kubernetes import config as kubernetes_config

from trainmaster.api.decoding import decode
from trainmaster.api.encoding import encode
from trainmaster.api.v1alpha1 import GROUP, INSTALL_CRD
from trainmaster.client.errors import ClientError, InvalidRequest, JobExists, JobNotFound, NoCluster, NotAllowed

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0


class Transport(Protocol):
    """Transport is what `JobClient` needs of a connection; tests give it another one."""

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Any:
        """Sends one request and returns the decoded JSON. Raises a ClientError."""

    def lines(self, path: str, *, query: Mapping[str, str], read_seconds: float | None) -> Iterator[bytes]:
        """Yields the lines of a streaming answer (a watch, a log), until it ends."""


@dataclass(frozen=True)
class KubernetesTransport:
    """KubernetesTransport sends requests over the official client's connection."""

    api: kubernetes_client.ApiClient

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Any:
        """Sends one request and returns the decoded JSON (None for an empty answer)."""
        response = self._send(method, path, query or {}, body, content_type, READ_SECONDS)
        text = response.read()
        return decode(text) if text else None

    def lines(self, path: str, *, query: Mapping[str, str], read_seconds: float | None) -> Iterator[bytes]:
        """Yields the lines of a streaming answer, until the server ends it or nothing came for `read_seconds`."""
        response = self._send("GET", path, query, None, "application/json", read_seconds).response
        rest = b""
        try:
            for chunk in response.stream(65536, decode_content=True):
                *whole, rest = (rest + chunk).split(b"\n")
                yield from whole
            if rest:
                yield rest
        except urllib3.exceptions.HTTPError:
            # The connection broke or stood still: the caller starts again where it was.
            return
        finally:
            response.close()

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Any,
        content_type: str,
        read_seconds: float | None,
    ) -> Any:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        parts = self.api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            # The client's own encoding is right for JSON; as YAML, pairs of surrogates aren't.
            body=encode(body) if body is not None and content_type.endswith("+yaml") else body,
            auth_settings=["BearerToken"],
        )
        try:
            response = self.api.call_api(*parts, _request_timeout=(CONNECT_SECONDS, read_seconds))
        except urllib3.exceptions.HTTPError as error:
            address = self.api.configuration.host
            raise NoCluster(f"The cluster at {address} doesn't answer: {_reason(error)}.") from error
        if not 200 <= response.status < 300:
            raise _translate(response.status, response.read(), path)
        return response


def connect(kubeconfig: str | None = None, context: str | None = None) -> tuple[KubernetesTransport, str]:
    """Connects by kubeconfig (or from inside a pod); returns also the context's namespace. Raises NoCluster."""
    configuration = kubernetes_client.Configuration()
    named = kubeconfig or os.environ.get("KUBECONFIG", "")
    if named and not any(Path(path).expanduser().exists() for path in named.split(os.pathsep)):
        raise NoCluster(f"The kubeconfig {named} ({'--kubeconfig' if kubeconfig else 'KUBECONFIG'}) doesn't exist.")
    try:
        kubernetes_config.load_kube_config(kubeconfig, context, client_configuration=configuration)
        _, active = kubernetes_config.list_kube_config_contexts(kubeconfig)
        namespace = _context_namespace(kubeconfig, context, active)
    except kubernetes_config.ConfigException as error:
        if kubeconfig or context:
            sentence = str(error).removeprefix("Invalid kube-config file. ").rstrip(".")
            raise NoCluster(f"The kubeconfig can't be used: {sentence}.") from error
        try:
            kubernetes_config.load_incluster_config(client_configuration=configuration)
        except kubernetes_config.ConfigException as inside:
            raise NoCluster(
                "No cluster is configured: set KUBECONFIG or --kubeconfig, or start one with `trainmaster local up`."
            ) from inside
        namespace = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace").read_text().strip()
    configuration.retries = False
    return KubernetesTransport(kubernetes_client.ApiClient(configuration)), namespace


def _context_namespace(kubeconfig: str | None, context: str | None, active: Mapping[str, Any]) -> str:
    contexts, _ = kubernetes_config.list_kube_config_contexts(kubeconfig)
    chosen = next((entry for entry in contexts if entry["name"] == context), active)
    return str(chosen.get("context", {}).get("namespace") or "default")


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or error).rsplit(": ", 1)[-1].rstrip(".")


def _translate(status: int, body: bytes | None, path: str) -> ClientError:
    """Returns the API server's Status as one of our errors, with its own message."""
    if status == 404 and body and not body.startswith(b"{") and path.startswith(f"/apis/{GROUP}/"):
        # No Status, but what answers where no type of the group is served.
        return JobNotFound(
            "this cluster doesn't know DistributedTrainingJobs: install Trainmaster, or only the custom resource "
            f"({INSTALL_CRD})"
        )
    try:
        answer = decode(body or b"{}")
        message = str(answer.get("message") or answer)
    except ValueError:
        message = (body or b"").decode("utf-8", "replace")[:500]
    kinds: dict[int, type[ClientError]] = {401: NotAllowed, 403: NotAllowed, 404: JobNotFound}
    if status == 409 and "already exists" in message:
        return JobExists(message)
    return kinds.get(status, InvalidRequest)(message)

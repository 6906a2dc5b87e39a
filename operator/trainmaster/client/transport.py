"""Requests go to the API server with raw dicts, over the official client's connection and authentication.

The typed models of the official client add nothing for a custom resource and cost time at import and in decoding, so
only its `ApiClient` (kubeconfig, exec plugins, TLS, tokens, proxies) is used.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import urllib3
from kubernetes import client as kubernetes_client
from kubernetes import config as kubernetes_config

from trainmaster.api.decoding import decode
from trainmaster.api.encoding import encode
from trainmaster.api.v1alpha1 import GROUP, INSTALL_CRD
from trainmaster.client.errors import ClientError, InvalidRequest, JobExists, JobNotFound, NoCluster, NotAllowed
from trainmaster.kubeconfig import Credentials, Kubeconfig, KubeconfigError, Plugin, check_certificates, read_kubeconfig

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
# Characters of an answer that a sentence quotes.
MAX_QUOTED = 60
# What an API server answers for a path of which it serves nothing; a proxy has words of its own.
NO_SUCH_PATH = b"404 page not found"
_ERRNO = re.compile(r"\[Errno -?\d+\] ")


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
        """Sends one request and returns the decoded JSON, which has a kind."""
        response = self._send(method, path, query or {}, body, content_type, READ_SECONDS)
        text = self._body(response)
        try:
            answer = decode(text)
        except ValueError as error:
            raise self._no_api_server(response, text) from error
        if not isinstance(answer, dict) or not isinstance(answer.get("kind"), str):
            raise self._no_api_server(response, text)
        return answer

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
        try:
            parts = self.api.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params=headers,
                # The client's own encoding is right for JSON; as YAML, pairs of surrogates aren't.
                body=encode(body) if body is not None and content_type.endswith("+yaml") else body,
                auth_settings=["BearerToken"],
            )
            response = self.api.call_api(*parts, _request_timeout=(CONNECT_SECONDS, read_seconds))
        except KubeconfigError as error:
            # The plugin was asked for new credentials.
            raise NoCluster(f"{error}.") from error
        except kubernetes_client.ApiException as error:
            # The official client raises it, without a status, for what is wrong with TLS; the cause is its context.
            raise self._untrusted(error.__context__ or error) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise NoCluster(
                f"The cluster at {self._address} doesn't answer: {_reason(error)}; is it up, and is the kubeconfig's "
                "server its address?"
            ) from error
        if not 200 <= response.status < 300:
            raise self._translate(response, path)
        return response

    @property
    def _address(self) -> str:
        return str(self.api.configuration.host)

    def _body(self, response: Any) -> bytes:
        try:
            return bytes(response.read() or b"")
        except urllib3.exceptions.HTTPError as error:
            raise NoCluster(f"The answer of the cluster at {self._address} broke off: {_reason(error)}.") from error

    def _untrusted(self, error: BaseException) -> NoCluster:
        reason = _reason(error)
        if "WRONG_VERSION_NUMBER" in str(error) or "RECORD_LAYER" in str(error):
            return NoCluster(f"The server at {self._address} doesn't speak TLS; does its address begin with http://?")
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return NoCluster(
                f"The cluster at {self._address} can't be trusted: {reason}; the kubeconfig's certificate-authority is "
                "not the one of this cluster: get a kubeconfig of it, or choose another context."
            )
        return NoCluster(f"No TLS connection to the cluster at {self._address}: {reason}.")

    def _no_api_server(self, response: Any, body: bytes) -> NoCluster:
        kind = str(response.headers.get("Content-Type") or "").partition(";")[0]
        what = f"{kind} " if kind else ""
        where = f" to {location}" if (location := response.headers.get("Location")) else ""
        return NoCluster(
            f"What answers at {self._address} is no Kubernetes API server (HTTP {response.status}{where}, "
            f"{what}{_beginning(body)!r}): check the kubeconfig's server, and proxies in between."
        )

    def _translate(self, response: Any, path: str) -> ClientError:
        """Returns the API server's Status as one of our errors, with its own message."""
        status, body = response.status, self._body(response)
        try:
            answer = decode(body)
        except ValueError:
            answer = None
        is_status = isinstance(answer, dict) and answer.get("kind") == "Status"
        message = str(answer.get("message") or answer.get("reason") or f"HTTP {status}") if is_status else ""
        if status == 401:
            return NotAllowed(
                f"The cluster at {self._address} doesn't know you (401 Unauthorized): the kubeconfig's token or "
                "certificate may have expired; log in anew, or choose another context."
            )
        if (
            status == 404
            and path.startswith(f"/apis/{GROUP}/")
            and (body.strip() == NO_SUCH_PATH or "could not find the requested resource" in message)
        ):
            # What answers where no type of the group is served names no object.
            return JobNotFound(
                "this cluster doesn't know DistributedTrainingJobs: install Trainmaster, or only the custom resource "
                f"({INSTALL_CRD})"
            )
        if not is_status and status not in (429, *range(500, 600)):
            return self._no_api_server(response, body)
        if status == 429 or status >= 500:
            said = message or _beginning(body)
            return NoCluster(f"The cluster at {self._address} can't answer now (HTTP {status}): {said}; try again.")
        if status == 409 and answer.get("reason") == "AlreadyExists":
            return JobExists(message)
        kinds: dict[int, type[ClientError]] = {403: NotAllowed, 404: JobNotFound}
        return kinds.get(status, InvalidRequest)(message)


def connect(kubeconfig: str | None = None, context: str | None = None) -> tuple[KubernetesTransport, str]:
    """Connects by kubeconfig (or from inside a pod); returns also the context's namespace. Raises NoCluster."""
    configuration = kubernetes_client.Configuration()
    try:
        found = read_kubeconfig(kubeconfig, context)
        if found is None:
            namespace = _load_in_cluster(configuration)
        else:
            namespace = found.namespace
            _load(found, configuration)
        configuration.retries = False
        return KubernetesTransport(kubernetes_client.ApiClient(configuration)), namespace
    except KubeconfigError as error:
        raise NoCluster(f"{error}.") from error


def _load(found: Kubeconfig, configuration: kubernetes_client.Configuration) -> None:
    """Puts what the kubeconfig says into the configuration. Raises KubeconfigError."""
    if found.has_provider:
        try:
            kubernetes_config.load_kube_config(found.path, found.context, client_configuration=configuration)
        except Exception as error:
            # The loader asks an identity provider over HTTP, and lets out whatever it, its answer or its tokens cause.
            raise found.without_token(error) from error
    else:
        credentials = found.plugin.run() if found.plugin is not None else None
        kubernetes_config.load_kube_config_from_dict(
            found.document(credentials), client_configuration=configuration, persist_config=False
        )
        if found.plugin is not None and credentials is not None:
            vars(configuration)["refresh_api_key_hook"] = _Renewal(found.plugin, credentials)
    files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    check_certificates(f"kubeconfig {found.path}", *files)
    if (configuration.proxy or "").startswith("socks") and find_spec("socks") is None:
        raise KubeconfigError(f"kubeconfig {found.path}: proxy-url: a SOCKS proxy needs PySocks: pip install pysocks")


@dataclass
class _Renewal:
    """The official client calls it before each request; it runs the plugin again when the credentials expire."""

    plugin: Plugin
    credentials: Credentials

    def __call__(self, configuration: kubernetes_client.Configuration) -> None:
        if self.credentials.token and self.credentials.expired:
            self.credentials = self.plugin.run()
            configuration.api_key["BearerToken"] = f"Bearer {self.credentials.token}"


def _load_in_cluster(configuration: kubernetes_client.Configuration) -> str:
    """Takes the pod's service account, and returns its namespace. Raises NoCluster."""
    try:
        kubernetes_config.load_incluster_config(client_configuration=configuration)
        return NAMESPACE_FILE.read_text().strip()
    except (kubernetes_config.ConfigException, OSError, ValueError) as error:
        raise NoCluster(
            "No cluster is configured: set KUBECONFIG or --kubeconfig, or start one with `trainmaster local up`."
        ) from error


def _reason(error: BaseException) -> str:
    """Returns what a chain of exceptions is about: the innermost of them says it in the fewest words."""
    while isinstance(reason := getattr(error, "reason", None), BaseException) or (
        error.args and isinstance(reason := error.args[-1], BaseException)
    ):
        error = reason
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message).rstrip(".")
    if isinstance(error, ssl.SSLError):
        return (error.reason or "the handshake failed").lower().replace("_", " ")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return _ERRNO.sub("", str(error)).rsplit(": ", 1)[-1].rstrip(".")


def _beginning(body: bytes) -> str:
    text = " ".join(body.decode("utf-8", "replace").split())
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}..."

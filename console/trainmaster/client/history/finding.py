"""Finds the history that a viewer uses, and the token that identifies the viewer to the history.

The history's address comes from the first of these:

1. `--history`, or else TRAINMASTER_HISTORY;
2. the extension `trainmaster.dev/history` of the kubeconfig's cluster, `{url: https://…}`;
3. the service that the cluster announces, reached through the API server's proxy. The service receives viewers' tokens,
   so an annotation of a cluster role announces it: only administrators write cluster roles. If the service had a fixed
   name instead, any user who may create namespaces and services could take that name.

A history identifies viewers by a bearer token that the API server accepts. This is the kubeconfig's token. Users
without a token (those with a certificate, for example) use a service account's token, which the API server creates
(TokenRequest) for users who may create `serviceaccounts/token`. Tokens with a separate audience aren't used, because
the history would need rights to check them, and users of an identity provider couldn't get one.
"""

from __future__ import annotations

import os
import re
import ssl
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainmaster.client.answers import Answer, Reader, innermost
from trainmaster.client.errors import ClientError, InvalidRequest, JobNotFound, NoCluster, NotAllowed
from trainmaster.client.server import Authorization, Fixed, Server, environment_proxy, require_socks, tls_context
from trainmaster.client.transport import AsyncTransport, HttpTransport
from trainmaster_operator.kubeconfig import KubeconfigError, require_address
from trainmaster_operator.wire.values import mapping, shown

VARIABLE, ACCOUNT_VARIABLE = "TRAINMASTER_HISTORY", "TRAINMASTER_HISTORY_SERVICE_ACCOUNT"
EXTENSION = "trainmaster.dev/history"
ROLE, ANNOTATION = "trainmaster-history", "trainmaster.dev/history"
ROLE_PATH = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{ROLE}"
# Lifetime of a service account's token, the shortest that Kubernetes offers, and how long before its end the token is
# replaced (seconds).
TOKEN_SECONDS, EARLY_SECONDS = 600, 60.0
NO_SUCH_PATH = "the server could not find the requested resource"
ELSEWHERE = f"--history or {VARIABLE} names one elsewhere"
_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_PLACE = re.compile(rf"(?P<namespace>{_LABEL})/(?P<service>{_LABEL}):(?P<port>{_LABEL})")
_ACCOUNT = re.compile(r"(?:([a-z0-9][-a-z0-9]{0,62})/)?([a-z0-9][-a-z0-9.]{0,252})")


class NoWay(NotAllowed):
    """The viewer can't reach the history, because a token or the right to use the API server's proxy is missing."""


class NoHistory(NoCluster):
    """The cluster announces no history."""


@dataclass(frozen=True)
class FoundHistory:
    """FoundHistory contains the server that a viewer asks: the history, or the cluster that announces it."""

    server: Server
    is_announced: bool = False

    @property
    def answers(self) -> HistoryErrors:
        """Returns the reader that turns the server's answers into errors."""
        return HistoryErrors(self.server.address, proxied=self.is_announced)


def find_history(
    given: str | None,
    server: Server,
    *,
    token: str | None = None,
    account: str | None = None,
    authority: str | None = None,
) -> FoundHistory:
    """Returns the history that `given` names, or else the cluster's. Raises NoCluster and InvalidRequest.

    `server` is the cluster with the viewer's credentials. The history receives the token of these credentials, unless
    `token` or a service account (`account`, ACCOUNT_VARIABLE) is given. `authority` is a file with the certificate
    authority for an https address. By default, the system's authorities are used.
    """
    if server.acting_as is not None:
        raise InvalidRequest("A history knows you by your token, so it can't be asked on behalf of others: no --as.")
    if token is not None and account is not None:
        raise InvalidRequest("--token and --service-account both name who asks; give one of them.")
    account = account or (None if token is not None else os.environ.get(ACCOUNT_VARIABLE)) or None
    bearer = _bearer(_fixed(token) or server.authorization) if account is None else AccountToken.of(server, account)
    try:
        address = _address(given, server)
        if address is None:
            return FoundHistory(replace(server, passed_on=bearer), is_announced=True)
        # An API server's proxy on the way would remove Authorization, so a second header contains the token too.
        tls, proxy = _tls(address, authority), environment_proxy(address)
        found = Server(address.rstrip("/"), tls, None, proxy, bearer, server.namespace, passed_on=bearer)
        require_socks("the proxy of the environment", found)
    except KubeconfigError as error:
        raise NoCluster(f"{error}.") from error
    return FoundHistory(found)


async def announced_prefix(transport: AsyncTransport) -> str:
    """Returns the prefix of the history's paths at the API server's proxy. Raises ClientError."""
    role = await transport.request("GET", ROLE_PATH)
    place = mapping(mapping(role.get("metadata")).get("annotations")).get(ANNOTATION)
    found = _PLACE.fullmatch(place) if isinstance(place, str) else None
    if found is None:
        raise NoCluster(
            f"Cluster role {ROLE}: the annotation {ANNOTATION} is {shown(place)}; an administrator has to set it to "
            "NAMESPACE/SERVICE:PORT, as the chart does."
        )
    return f"/api/v1/namespaces/{found['namespace']}/services/{found['service']}:{found['port']}/proxy"


def _bearer(authorization: Authorization) -> Authorization:
    """Wraps an authorization so that it returns only bearer tokens. Raises NoWay for others, and KubeconfigError."""

    def header() -> str:
        found = authorization()
        if found is None or not found.startswith("Bearer "):
            raise NoWay(
                "A history knows you by a bearer token, and the kubeconfig's user has none (a certificate or a "
                "password stays with the API server). Ask as a service account that may see the jobs: "
                f'--service-account NAME ({ACCOUNT_VARIABLE}), or --token "$(kubectl create token NAME)".'
            )
        return found

    return header


@dataclass
class AccountToken:
    """AccountToken provides the Authorization header of a service account."""

    server: Server
    namespace: str
    name: str
    header: str = field(default="", repr=False)
    until: float = 0.0

    @classmethod
    def of(cls, server: Server, account: str) -> AccountToken:
        """Parses `[NAMESPACE/]NAME`. By default, the context's namespace is used. Raises InvalidRequest."""
        found = _ACCOUNT.fullmatch(account)
        if found is None:
            raise InvalidRequest(f"--service-account: {account!r} is no service account; give NAME or NAMESPACE/NAME.")
        return cls(replace(server, passed_on=None), found[1] or server.namespace, found[2])

    def __call__(self) -> str:
        """Returns the header. If the last token expires soon, requests a new one. Raises a ClientError."""
        if time.monotonic() >= self.until:
            started = time.monotonic()
            self.header = f"Bearer {self._request()}"
            self.until = started + TOKEN_SECONDS - EARLY_SECONDS
        return self.header

    def _request(self) -> str:
        whose = f"service account {self.name} in namespace {self.namespace}"
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{self.name}/token"
        spec = {"expirationSeconds": TOKEN_SECONDS}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        try:
            answer = HttpTransport(self.server).request("POST", path, body=body)
        except NotAllowed as error:
            raise NoWay(
                f"You may not have a token made for {whose}: {error}; you need 'create' on serviceaccounts/token "
                "there, or a token that somebody gives you (--token)."
            ) from error
        except JobNotFound as error:
            raise NoWay(
                f"There is no {whose}; `kubectl -n {self.namespace} create serviceaccount {self.name}` makes one."
            ) from error
        token = mapping(answer.get("status")).get("token")
        if not isinstance(token, str) or not token:
            raise ClientError(f"The API server's answer has no token for {whose}.")
        return token


@dataclass(frozen=True)
class HistoryErrors(Reader):
    """HistoryErrors turns a history's answers into errors. `proxied`: the API server's proxy forwards them."""

    proxied: bool = False

    @property
    def who(self) -> str:
        return f"The history {'of the cluster ' * self.proxied}at {self.address}"

    def refusal(self, answer: Answer, path: str) -> ClientError:
        status, found = answer.status, answer.status_object
        message = str(found.get("message") or f"HTTP {status}")
        if status == 401:
            return NotAllowed(
                f"{self.who} doesn't know you (401 Unauthorized): the token may have expired; log in again, or give "
                "another one."
            )
        if path == ROLE_PATH and status in (403, 404):
            return NoHistory(
                f"The cluster at {self.address} announces no history (cluster role {ROLE}: {message}): an "
                f"administrator switches it on in the chart; {ELSEWHERE}."
            )
        # An API server that can't proxy to Services, such as that of `trainmaster local`, doesn't serve this path.
        missing = mapping(found.get("details")).get("kind") == "services" or message == NO_SUCH_PATH
        if self.proxied and status == 404 and missing:
            return NoCluster(
                f"The history that the cluster at {self.address} announces isn't there ({message}): an administrator "
                f"corrects the annotation of cluster role {ROLE}; {ELSEWHERE}."
            )
        if self.proxied and status == 403 and "services/proxy" in message:
            return NoWay(f"{message}; {ELSEWHERE}")
        return self._other_refusal(answer, message)

    def unreachable(self, error: BaseException) -> NoCluster:
        return NoCluster(f"{self.who} doesn't answer: {innermost(error)}; is that its address, and is it up?")

    def untrusted(self, error: BaseException) -> NoCluster:
        if self.proxied or "CERTIFICATE" not in str(error):
            return super().untrusted(error)
        return NoCluster(
            f"{self.who} can't be trusted: {innermost(error)}; the system's authorities don't know its certificate: "
            "give the file of the one that does (--history-ca)."
        )

    def no_such_server(self, answer: Answer) -> NoCluster:
        return NoCluster(f"What answers at {self.address} is no history ({self.description(answer)}); {ELSEWHERE}.")


def _address(given: str | None, server: Server) -> str | None:
    """Returns the address that the user has set, or None to use the announced one. Raises KubeconfigError."""
    place, address = ("--history", given) if given else (VARIABLE, os.environ.get(VARIABLE, ""))
    if not address and EXTENSION in server.extensions:
        place = f"the kubeconfig's cluster: extensions[{EXTENSION}].url"
        address = str(mapping(server.extensions[EXTENSION]).get("url") or "")
    elif not address:
        return None
    require_address(place, address, ("http", "https"), "https://HOST")
    return address


def _tls(address: str, authority: str | None) -> ssl.SSLContext | None:
    if not address.startswith("https"):
        return None
    if authority is not None and not Path(authority).is_file():
        raise KubeconfigError(f"--history-ca: {authority} is no file; give one with a certificate in PEM")
    return tls_context("--history-ca", {"certificate-authority": authority}, {})


def _fixed(token: str | None) -> Authorization | None:
    if token is None:
        return None
    if not token.strip() or not token.isascii() or not token.strip().isprintable():
        raise InvalidRequest("token: is empty, or holds characters that no header can have; give it as it was made")
    return Fixed(f"Bearer {token.strip()}")

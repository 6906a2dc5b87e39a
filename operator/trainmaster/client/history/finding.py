"""Where the history is: where the user says, else what the kubeconfig says of the cluster, else the chart's service.

1. `--history`, or else TRAINMASTER_HISTORY: the address of a history, or the file of one (`named_file`), which needs no
   server;
2. the extension `trainmaster.dev/history` of the kubeconfig's cluster, `{url: https://…}`;
3. the service of the chart, through the API server's proxy.

A history knows a viewer by the bearer token that the API server knows, and asks the API server what may be seen with
it. So it gets the kubeconfig's token, also through the proxy, which keeps Authorization for itself.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, replace
from pathlib import Path

from trainmaster.client.authorization import Authorization, Fixed
from trainmaster.client.errors import InvalidRequest, NoCluster
from trainmaster.client.history.answers import NAMESPACE, SERVICE, HistoryAnswers, NoWay
from trainmaster.client.proxies import environment_proxy
from trainmaster.client.server import Server, require_socks
from trainmaster.client.tls import tls_context
from trainmaster.kubeconfig import KubeconfigError, require_address
from trainmaster.wire.values import mapping

VARIABLE = "TRAINMASTER_HISTORY"
EXTENSION = "trainmaster.dev/history"
PROXY = f"/api/v1/namespaces/{NAMESPACE}/services/{SERVICE}:http/proxy"


@dataclass(frozen=True)
class HistoryServer:
    """HistoryServer is a history as one viewer reaches it; its paths begin with `prefix`."""

    server: Server
    prefix: str = ""

    @property
    def answers(self) -> HistoryAnswers:
        """Returns what a transport makes errors of its answers with."""
        return HistoryAnswers(self.server.address, proxied=bool(self.prefix))


@dataclass(frozen=True)
class BearerToken:
    """BearerToken passes on the authorization of a user who has a token, and refuses any other."""

    authorization: Authorization

    def __call__(self) -> str:
        """Returns the header. Raises NoWay for a user without a token, and KubeconfigError."""
        header = self.authorization()
        if header is None or not header.startswith("Bearer "):
            raise NoWay(
                "A history knows who asks by a bearer token, and the kubeconfig's user has none (a certificate or a "
                "password stays with the API server): give one (--token, token=), as `kubectl create token` makes it."
            )
        return header


def named_file(given: str | None) -> Path | None:
    """Returns the file that the user names as the history; None for an address, and where none is named."""
    _, named = _named(given)
    return Path(named).expanduser() if named and "://" not in named else None


def find_history(
    given: str | None, server: Server, *, token: str | None = None, authority: str | None = None
) -> HistoryServer:
    """Returns the history that `given` names, else that of the cluster. Raises NoCluster and InvalidRequest.

    `server` is the cluster as the viewer reaches it, whose token the history gets where `token` is none. `authority`
    is a file with the authority that vouches for a history behind https; without it the system's do.
    """
    if server.acting_as is not None:
        raise InvalidRequest("A history knows you by your token, so it can't be asked on behalf of others: no --as.")
    if named_file(given) is not None:
        raise InvalidRequest(f"{_named(given)[1]} is no address: give http:// or https://; `history` reads files too.")
    bearer = BearerToken(_own(token) or server.authorization)
    try:
        address = _address(given, server)
        if address is None:
            return HistoryServer(replace(server, passed_on=bearer), PROXY)
        # Behind its address may be an API server's proxy too, so the token goes there in both headers.
        found = Server(
            address.rstrip("/"),
            _tls(address, authority),
            None,
            environment_proxy(address),
            bearer,
            server.namespace,
            passed_on=bearer,
        )
        require_socks("the proxy of the environment", found)
    except KubeconfigError as error:
        raise NoCluster(f"{error}.") from error
    return HistoryServer(found)


def _named(given: str | None) -> tuple[str, str]:
    """Returns what the user names, behind where: the option or the variable."""
    return ("--history", given) if given else (VARIABLE, os.environ.get(VARIABLE, ""))


def _address(given: str | None, server: Server) -> str | None:
    """Returns the address that is named; None for the API server's proxy. Raises KubeconfigError."""
    place, address = _named(given)
    if not address and EXTENSION in server.extensions:
        place = f"the kubeconfig's cluster: extensions[{EXTENSION}].url"
        found = mapping(server.extensions[EXTENSION]).get("url")
        # What is there and is no text is an address as little as an empty one.
        address = found if isinstance(found, str) else "" if found is None else str(found)
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


def _own(token: str | None) -> Authorization | None:
    if token is None:
        return None
    if not token.strip() or not token.isascii() or not token.strip().isprintable():
        raise InvalidRequest("token: is empty, or holds characters that no header can have; give it as it was made")
    return Fixed(f"Bearer {token.strip()}")

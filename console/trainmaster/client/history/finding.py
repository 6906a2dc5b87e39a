"""The history is where the user says, else where the kubeconfig or an administrator of the cluster says.

1. `--history`, or else TRAINMASTER_HISTORY: the address of a history, or the file of one (`named_file`), which needs no
   server;
2. the extension `trainmaster.dev/history` of the kubeconfig's cluster, `{url: https://…}`;
3. the service that the cluster announces (`announcement`), through the API server's proxy.

A history knows a viewer by the bearer token that the API server knows, and asks the API server what may be seen with
it. So it gets the kubeconfig's token, also through the proxy, which keeps Authorization for itself; or a service
account's (`accounts`). A token for the history's own audience would need rights for the history to check it, and of
users that come from an identity provider nobody can make one.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, replace
from pathlib import Path

from trainmaster.client.errors import InvalidRequest, NoCluster
from trainmaster.client.history import accounts
from trainmaster.client.history.accounts import AccountToken
from trainmaster.client.history.answers import HistoryAnswers, NoWay
from trainmaster.client.server import Authorization, Fixed, Server, environment_proxy, require_socks, tls_context
from trainmaster_operator.kubeconfig import KubeconfigError, require_address
from trainmaster_operator.wire.values import mapping

VARIABLE = "TRAINMASTER_HISTORY"
EXTENSION = "trainmaster.dev/history"


@dataclass(frozen=True)
class HistoryServer:
    """HistoryServer is a history as one viewer reaches it.

    `is_announced`: the cluster at `server` says where it is, which is asked before the first request.
    """

    server: Server
    is_announced: bool = False

    @property
    def answers(self) -> HistoryAnswers:
        """Returns what a transport makes errors of its answers with."""
        return HistoryAnswers(self.server.address, proxied=self.is_announced)


@dataclass(frozen=True)
class BearerToken:
    """BearerToken passes on the authorization of a user who has a token, and refuses any other."""

    authorization: Authorization

    def __call__(self) -> str:
        """Returns the header. Raises NoWay for a user without a token, and KubeconfigError."""
        header = self.authorization()
        if header is None or not header.startswith("Bearer "):
            raise NoWay(
                "A history knows you by a bearer token, and the kubeconfig's user has none (a certificate or a "
                "password stays with the API server). Ask as a service account that may see the jobs: "
                f'--service-account NAME ({accounts.VARIABLE}), or --token "$(kubectl create token NAME)".'
            )
        return header


def named_file(given: str | None) -> Path | None:
    """Returns the file that the user names as the history; None for an address, and where none is named."""
    _, named = _named(given)
    return Path(named).expanduser() if named and "://" not in named else None


def find_history(
    given: str | None,
    server: Server,
    *,
    token: str | None = None,
    account: str | None = None,
    authority: str | None = None,
) -> HistoryServer:
    """Returns the history that `given` names, else that of the cluster. Raises NoCluster and InvalidRequest.

    `server` is the cluster as the viewer reaches it. The history gets its token, where there is neither `token` nor a
    service account `account` (accounts.VARIABLE). `authority` is a file with the authority that vouches for a history
    behind https; without it the system's do.
    """
    if server.acting_as is not None:
        raise InvalidRequest("A history knows you by your token, so it can't be asked on behalf of others: no --as.")
    if named_file(given) is not None:
        raise InvalidRequest(f"{_named(given)[1]} is no address: give http:// or https://; `history` reads files too.")
    if token is not None and account is not None:
        raise InvalidRequest("--token and --service-account both say who asks; give one of them.")
    account = account or (None if token is not None else os.environ.get(accounts.VARIABLE)) or None
    bearer: Authorization = BearerToken(_own(token) or server.authorization)
    if account is not None:
        bearer = AccountToken.of(server, account)
    try:
        address = _address(given, server)
        if address is None:
            return HistoryServer(replace(server, passed_on=bearer), is_announced=True)
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
    """Returns the address that is named; None for the one that the cluster announces. Raises KubeconfigError."""
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

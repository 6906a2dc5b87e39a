"""A user without a bearer token, such as one with a certificate, asks a history as a service account of theirs.

The API server makes a token for the account (TokenRequest) for whoever may create `serviceaccounts/token`. It lives for
ten minutes, and is for the API server's own audience: the history asks the API server with it what may be seen.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace

from trainmaster.client.errors import ClientError, InvalidRequest, JobNotFound, NotAllowed
from trainmaster.client.history.answers import NoWay
from trainmaster.client.server import Server
from trainmaster.client.transport import HttpTransport
from trainmaster_operator.wire.values import mapping

VARIABLE = "TRAINMASTER_HISTORY_SERVICE_ACCOUNT"
# The least that Kubernetes makes; and the seconds before its end at which another one is asked for.
TOKEN_SECONDS, EARLY_SECONDS = 600, 60.0
_NAME = re.compile(r"(?:([a-z0-9][-a-z0-9]{0,62})/)?([a-z0-9][-a-z0-9.]{0,252})")


@dataclass
class AccountToken:
    """AccountToken is the Authorization header of a service account."""

    server: Server
    namespace: str
    name: str
    header: str = field(default="", repr=False)
    until: float = 0.0

    @classmethod
    def of(cls, server: Server, account: str) -> AccountToken:
        """Returns that of `[NAMESPACE/]NAME`; without a namespace it is the context's. Raises InvalidRequest."""
        found = _NAME.fullmatch(account)
        if found is None:
            raise InvalidRequest(f"--service-account: {account!r} is no service account; give NAME or NAMESPACE/NAME.")
        return cls(replace(server, passed_on=None), found[1] or server.namespace, found[2])

    def __call__(self) -> str:
        """Returns the header, of a new token where the last one ends soon. Raises a ClientError."""
        if time.monotonic() >= self.until:
            started = time.monotonic()
            self.header = f"Bearer {self._request()}"
            self.until = started + TOKEN_SECONDS - EARLY_SECONDS
        return self.header

    def _request(self) -> str:
        whose = f"service account {self.name} in namespace {self.namespace}"
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{self.name}/token"
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": TOKEN_SECONDS},
        }
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

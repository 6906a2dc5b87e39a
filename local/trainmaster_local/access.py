"""Identifies the user of a request by its token: the administrator's, or a service account's."""

from __future__ import annotations

import hmac

from trainmaster_local.apiserver.api import Api
from trainmaster_local.apiserver.resources import User
from trainmaster_local.auth import Tokens

ADMIN = User("kubernetes-admin", ("system:masters", "system:authenticated"))


class ClusterAuthenticator:
    """This authenticator recognises the administrator by one token, and service accounts by theirs."""

    def __init__(self, api: Api, tokens: Tokens, admin_token: str) -> None:
        self._api = api
        self._tokens = tokens
        self._admin = admin_token.encode()

    def authenticate(self, token: str) -> User | None:
        if hmac.compare_digest(self._admin, token.encode()):
            return ADMIN
        return self._tokens.authenticate(token, self._api)

"""Who asks is said by the Authorization header of each request; whatever makes one is called for it each time.

Nothing here writes a token anywhere but into that header.
"""

from __future__ import annotations

import base64
import math
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from trainmaster.client.tls import load_certificate
from trainmaster_operator.kubeconfig import Credentials, Kubeconfig, Plugin

# Seconds. The kubelet renews a pod's token long before it expires; client-go reads the file as often.
REREAD_SECONDS = 60.0


class Authorization(Protocol):
    """Authorization gives the header of the next request."""

    def __call__(self) -> str | None:
        """Returns the header's value, or None for a request without one. Raises KubeconfigError."""


@dataclass(frozen=True)
class Fixed:
    """Fixed is a header that stays as it is: a token, a name with its password, or none."""

    # Nothing that shows or logs a connection shows this.
    header: str | None = field(repr=False)

    @classmethod
    def of(cls, user: Mapping[str, Any]) -> Fixed:
        """Returns the header of a kubeconfig's user."""
        if user.get("token"):
            return cls(f"Bearer {user['token']}")
        if user.get("username") and user.get("password"):
            pair = f"{user['username']}:{user['password']}".encode()
            return cls(f"Basic {base64.b64encode(pair).decode()}")
        return cls(None)

    def __call__(self) -> str | None:
        return self.header


@dataclass
class TokenFile:
    """TokenFile has a token that somebody renews in its file: the kubelet, for a service account."""

    path: Path
    token: str
    read_at: float

    @classmethod
    def of(cls, path: Path) -> TokenFile:
        """Reads the file. Raises OSError and ValueError for one without a token."""
        token = path.read_text(encoding="utf-8").strip()
        if not token:
            raise ValueError(f"{path} is empty")
        return cls(path, token, time.monotonic())

    @classmethod
    def of_user(cls, user: Mapping[str, Any]) -> TokenFile:
        """Returns the file of a kubeconfig's user, which counts before the token that stands there, as to kubectl."""
        return cls(Path(user["tokenFile"]), user.get("token", ""), -math.inf)

    def __call__(self) -> str | None:
        if time.monotonic() - self.read_at >= REREAD_SECONDS:
            self.read_at = time.monotonic()
            # While the file is replaced the old token does; the API server says so when it is too old.
            with suppress(OSError, ValueError):
                self.token = self.path.read_text(encoding="utf-8").strip() or self.token
        return f"Bearer {self.token}" if self.token else None


@dataclass
class PluginCredentials:
    """PluginCredentials are an exec plugin's; it is asked again when they expire."""

    plugin: Plugin
    credentials: Credentials
    # Gets the certificate that the plugin gives next; None where the API server is asked without TLS.
    context: ssl.SSLContext | None

    def __call__(self) -> str | None:
        if self.credentials.expired:
            self.credentials = self.plugin.run()
            if self.context is not None and self.credentials.certificate:
                load_certificate(self.context, self.plugin.place, self.credentials.certificate, self.credentials.key)
        return f"Bearer {self.credentials.token}" if self.credentials.token else None


@dataclass(frozen=True)
class ProviderToken:
    """ProviderToken is an auth-provider's, which only the official client knows how to renew."""

    kubeconfig: Kubeconfig
    token: Callable[[], str | None]

    @classmethod
    def of(cls, found: Kubeconfig) -> ProviderToken:
        """Loads the kubeconfig with the official client. Raises KubeconfigError."""
        # Its import takes longer than a command, and hardly any kubeconfig needs it.
        from kubernetes.client import Configuration
        from kubernetes.config import load_kube_config

        configuration = Configuration()
        try:
            load_kube_config(found.path, found.context, client_configuration=configuration)
        except Exception as error:
            # The loader asks an identity provider over HTTP, and lets out whatever it, its answer or its tokens cause.
            raise found.without_token(error) from error
        return cls(found, lambda: configuration.get_api_key_with_prefix("BearerToken"))

    def __call__(self) -> str | None:
        try:
            return self.token()
        except Exception as error:
            raise self.kubeconfig.without_token(error) from error

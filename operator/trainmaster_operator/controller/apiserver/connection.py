"""Finds the API server and our credentials, in the pod's service account or else in a kubeconfig.

Our own client and kopf's watches use the same configuration.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import getproxies_environment

import aiohttp
import kopf
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config, load_kube_config_from_dict
from kubernetes.aio.config.incluster_config import SERVICE_TOKEN_FILENAME

from trainmaster_operator.controller.apiserver.errors import ClusterError, Unauthorized, Untrusted, from_response
from trainmaster_operator.controller.apiserver.kept import Fields, response_class
from trainmaster_operator.kubeconfig import (
    Credentials,
    Kubeconfig,
    KubeconfigError,
    Plugin,
    check_certificates,
    read_kubeconfig,
)

logger = logging.getLogger(__name__)

NO_TOKEN = (
    f"this pod has no service account's token ({SERVICE_TOKEN_FILENAME}) and no kubeconfig: set the pod's "
    "automountServiceAccountToken to true"
)
NO_CONFIG = "no kubeconfig at ~/.kube/config: set KUBECONFIG or --kubeconfig, or run in a pod with a service account"


class ConnectionSettingsError(Exception):
    """No usable API server is configured; the message names the setting to change."""


@dataclass(frozen=True)
class ApiConnection:
    """Holds a loaded client configuration and its source."""

    configuration: Configuration
    in_cluster: bool

    def unusable(self, error: ClusterError) -> str:
        """Returns the problem and its remedy, for a cluster where the first request failed with this error."""
        host = self.configuration.host
        if isinstance(error, Unauthorized):
            return (
                f"the cluster at {host} doesn't know you (401 Unauthorized): the token or certificate may have "
                "expired; log in again, or choose another context"
            )
        if isinstance(error, Untrusted):
            return (
                f"the cluster at {host} can't be trusted: {error.message}; the kubeconfig's certificate-authority is "
                "not the one of this cluster: get a kubeconfig of it, or choose another context"
            )
        return f"the cluster at {host} can't be used: {error}"

    async def for_kopf(
        self, requested: Callable[[str, bool], None], kept_at: Callable[[str], Fields | None]
    ) -> kopf.AiohttpSession:
        """Return a session with these credentials. kopf requests another session when the API server answers 401.

        Each request calls `requested` with its path and with whether it is a watch. `kept_at` takes a path, and returns
        the fields to keep of the objects there. Unlike kopf's own session, this one follows no redirects.
        """
        config = self.configuration
        header = await config.get_api_key_with_prefix("BearerToken", alias="authorization")
        scheme, _, token = (header or "").rpartition(" ")
        info = kopf.ConnectionInfo(
            server=config.host,
            ca_path=config.ssl_ca_cert,
            insecure=not config.verify_ssl,
            scheme=scheme or None,
            token=token or None,
            certificate_path=config.cert_file,
            private_key_path=config.key_file,
            proxy_url=config.proxy,
        )

        async def started(session: object, context: object, params: aiohttp.TraceRequestStartParams) -> None:
            del session, context
            requested(params.url.path, "watch" in params.url.query)

        tracing = aiohttp.TraceConfig()
        tracing.on_request_start.append(started)
        tracing.on_request_redirect.append(_refuse_redirect)
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
            proxy=info.proxy_url,
            trust_env=info.trust_env,
            response_class=response_class(kept_at),
            trace_configs=[tracing],
        )
        return kopf.AiohttpSession(aiohttp_session=session, server=config.host)


async def _refuse_redirect(session: object, context: object, params: aiohttp.TraceRequestRedirectParams) -> None:
    del session, context
    answer = params.response
    raise from_response(f"{params.method} {params.url.path}", answer.status, answer.headers, b"")


async def connect(kubeconfig: str | None, context: str | None) -> ApiConnection:
    """Load the configuration. Raises ConnectionSettingsError.

    `kubeconfig` or `context` is used if given, else the service account, else KUBECONFIG or ~/.kube/config.
    """
    config = Configuration()
    # For aiohttp, 0 means "no limit". If agents are reached through the API server's proxy, the stream of each running
    # job's leader uses this pool.
    config.connection_pool_maxsize = 0
    # With trust_env aiohttp looks for ~/.netrc in a thread at every request, which adds at least 0.3 ms to each write.
    config.client_session_kwargs = {"trust_env": bool(getproxies_environment())}
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    if kubeconfig is None and context is None and in_pod and _has_token():
        try:
            load_incluster_config(client_configuration=config)
            check_certificates("the pod's service account", config.ssl_ca_cert, None, None)
        except KubeconfigError as error:
            raise ConnectionSettingsError(str(error)) from error
        except (ConfigException, OSError, ValueError) as error:
            raise ConnectionSettingsError(f"the pod's service account can't be used: {error}") from error
        return ApiConnection(config, in_cluster=True)
    try:
        found = read_kubeconfig(kubeconfig, context)
        if found is None:
            raise ConnectionSettingsError(NO_TOKEN if in_pod else NO_CONFIG)
        await _load(found, config)
    except KubeconfigError as error:
        raise ConnectionSettingsError(str(error)) from error
    return ApiConnection(config, in_cluster=False)


async def _load(found: Kubeconfig, config: Configuration) -> None:
    plugin = found.plugin
    if found.has_provider:
        try:
            await load_kube_config(found.path, found.context, client_configuration=config, persist_config=False)
        except Exception as error:
            # The loader may send HTTP requests to an identity provider, and doesn't catch errors from the provider, its
            # answer or its tokens.
            raise found.without_token(error) from error
    else:
        credentials = await asyncio.to_thread(plugin.run) if plugin is not None else None
        await load_kube_config_from_dict(found.document(credentials), client_configuration=config)
        if plugin is not None and credentials is not None:
            vars(config)["refresh_api_key_hook"] = _Renewal(plugin, credentials).renew
    check_certificates(f"kubeconfig {found.path}", config.ssl_ca_cert, config.cert_file, config.key_file)
    if (config.proxy or "").startswith("socks"):
        raise KubeconfigError(f"kubeconfig {found.path}: proxy-url: the operator uses no SOCKS proxy; give one of HTTP")


def _has_token() -> bool:
    return Path(SERVICE_TOKEN_FILENAME).exists()


@dataclass
class _Renewal:
    """Runs the credentials plugin again when the credentials expire. The client awaits `renew` before each request."""

    plugin: Plugin
    credentials: Credentials
    running: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def renew(self, config: Configuration) -> None:
        """Renew the token if that is due. If the plugin fails, the old token is sent, and the API server decides."""
        async with self.running:
            if not (self.credentials.token and self.credentials.expired):
                return
            try:
                self.credentials = await asyncio.to_thread(self.plugin.run)
            except KubeconfigError as error:
                logger.warning("No new credentials: %s", error)
                return
            config.api_key["BearerToken"] = f"Bearer {self.credentials.token}"

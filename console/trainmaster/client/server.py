"""`find_server` says where the API server is, how it is trusted and who asks, by the kubeconfig or in a pod."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainmaster.client.arguments import require, require_text
from trainmaster.client.authorization import Authorization, Fixed, PluginCredentials, ProviderToken, TokenFile
from trainmaster.client.errors import NoCluster
from trainmaster.client.proxies import environment_proxy
from trainmaster.client.tls import tls_context
from trainmaster_operator.kubeconfig import Kubeconfig, KubeconfigError, read_kubeconfig

_OPTION = re.compile(r"--(kubeconfig|context)\b")
# What the kubelet mounts into a pod with a service account.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Names the file with the API server's authority, for a pod that has no service account.
AUTHORITY_VARIABLE = "TRAINMASTER_API_SERVER_CA"


@dataclass(frozen=True)
class Server:
    """Server is an API server as one user reaches it."""

    # Without a slash at its end; it may have a path, behind a proxy of clusters.
    address: str
    # None for http://
    tls: ssl.SSLContext | None
    # The name in the server's certificate, where it isn't the address'.
    certificate_name: str | None
    proxy: str | None
    authorization: Authorization
    # The context's, where the user names none.
    namespace: str
    # On whose behalf the user asks, who has to be allowed to impersonate.
    acting_as: str | None = None
    # What a proxy has to pass on to the service behind it, which gets no Authorization through the API server.
    passed_on: Authorization | None = None
    # The kubeconfig's for the cluster, by their names; unchecked.
    extensions: Mapping[str, Any] = field(default_factory=dict)


def find_server(
    kubeconfig: str | None = None, context: str | None = None, *, cluster: str | None = None, user: str | None = None
) -> Server:
    """Returns the server of a kubeconfig's context, or of the pod that this runs in. Raises NoCluster.

    `cluster` and `user` name entries of the kubeconfig that count instead of the context's.
    """
    try:
        found = read_kubeconfig(kubeconfig, context, cluster=cluster, user=user)
        server = _of_pod() if found is None else _of_kubeconfig(found)
        place = "the proxy of the environment" if found is None else f"kubeconfig {found.path}: proxy-url"
        require_socks(place, server)
    except KubeconfigError as error:
        raise NoCluster(f"{error}.") from error
    return server


def address_of(kubeconfig: str | None = None, context: str | None = None) -> Server:
    """Returns the API server with no credentials at all, for those who ask in the name of others. Raises NoCluster."""
    try:
        found = read_kubeconfig(kubeconfig, context)
        if found is not None:
            nobody = replace(found, user={}, plugin=None, has_provider=False)
            return _of_kubeconfig(nobody)
        address, authority = _pod_address()
        tls = tls_context("the pod", {"certificate-authority": str(authority)}, {})
    except KubeconfigError as error:
        raise NoCluster(f"{error}.") from error
    return Server(address, tls, None, environment_proxy(address), Fixed(None), "default")


def for_viewer(server: Server, token: str) -> Server:
    """Returns the server as who has this bearer token reaches it. `server` is one without credentials (address_of)."""
    return replace(server, authorization=Fixed(f"Bearer {token}"))


def require_socks(place: str, server: Server) -> None:
    """Raises KubeconfigError, which names `place`, for a proxy that can't be used without another package."""
    if (server.proxy or "").startswith("socks") and find_spec("socks") is None:
        raise KubeconfigError(f"{place}: a SOCKS proxy needs PySocks: pip install pysocks")


def server_for(kubeconfig: str | os.PathLike[str] | None, context: str | None) -> Server:
    """Returns the server for a program, whose sentences name the arguments and not the command line's options.

    Raises NoCluster, and InvalidRequest for arguments of another type.
    """
    if kubeconfig is not None:
        require("kubeconfig", kubeconfig, (str, os.PathLike), "the path of a file")
        kubeconfig = os.fspath(kubeconfig)
    require_text("context", context, "the name of a context as text")
    try:
        return find_server(kubeconfig, context)
    except NoCluster as error:
        raise NoCluster(_OPTION.sub(r"\1=", str(error))) from error


def _of_kubeconfig(found: Kubeconfig) -> Server:
    credentials = found.plugin.run() if found.plugin is not None and not found.has_provider else None
    [user] = (entry["user"] for entry in found.document(credentials)["users"])
    address = str(found.cluster["server"]).rstrip("/")
    tls = tls_context(f"kubeconfig {found.path}", found.cluster, user) if address.startswith("https") else None
    authorization: Authorization = Fixed.of(user)
    if found.has_provider:
        authorization = ProviderToken.of(found)
    elif found.user.get("tokenFile"):
        authorization = TokenFile.of_user(found.user)
    elif found.plugin is not None and credentials is not None:
        authorization = PluginCredentials(found.plugin, credentials, tls)
    return Server(
        address,
        tls,
        found.cluster.get("tls-server-name"),
        found.cluster.get("proxy-url") or environment_proxy(address),
        authorization,
        found.namespace,
        extensions=found.extensions,
    )


def _of_pod() -> Server:
    try:
        address, authority = _pod_address()
        authorization = TokenFile.of(SERVICE_ACCOUNT / "token")
        namespace = (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise _no_cluster() from error
    tls = tls_context("the pod's service account", {"certificate-authority": str(authority)}, {})
    return Server(address, tls, None, environment_proxy(address), authorization, namespace)


def _pod_address() -> tuple[str, Path]:
    """Returns the API server's address as a pod has it, and the file with its authority. Raises NoCluster."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    authority = Path(os.environ.get(AUTHORITY_VARIABLE) or SERVICE_ACCOUNT / "ca.crt")
    if not (host and port and authority.is_file()):
        raise _no_cluster()
    return (f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"), authority


def _no_cluster() -> NoCluster:
    return NoCluster(
        "No cluster is configured: set KUBECONFIG or --kubeconfig, or start one with `trainmaster local up`."
    )

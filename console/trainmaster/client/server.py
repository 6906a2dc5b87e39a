"""`find_server` finds the API server's address, proxy, TLS settings and credentials in a kubeconfig or a pod.

As in kubectl, NO_PROXY applies to the environment's proxy (with the rules of Go's httpproxy), but not to a kubeconfig's
proxy. The Authorization header is computed for each request, because tokens and certificates are renewed. Tokens are
put only into headers.
"""

from __future__ import annotations

import base64
import ipaddress
import math
import os
import re
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

from trainmaster.client.errors import NoCluster
from trainmaster.client.job import OPTIONAL_TEXT, require
from trainmaster_operator.kubeconfig import (
    Credentials,
    Kubeconfig,
    KubeconfigError,
    Plugin,
    check_certificates,
    read_kubeconfig,
)

_OPTION = re.compile(r"--(kubeconfig|context)\b")
# The folder with the service account's credentials, which the kubelet mounts into a pod.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# In a pod without a service account, this variable names the file with the API server's certificate authority.
AUTHORITY_VARIABLE = "TRAINMASTER_API_SERVER_CA"
NO_CLUSTER = "No cluster is configured: set KUBECONFIG or --kubeconfig, or start one with `trainmaster local up`."
# Provides the Authorization header of the next request, or None for a request without one. Raises KubeconfigError.
Authorization = Callable[[], str | None]
# Interval between readings of a token's file (seconds), as in client-go. The kubelet renews tokens early enough.
REREAD_SECONDS = 60.0


@dataclass(frozen=True)
class Server:
    """Server is an API server with one user's credentials."""

    # The address has no trailing slash. It contains a path if a proxy serves several clusters at one address.
    address: str
    # The TLS settings, or None for http://.
    tls: ssl.SSLContext | None
    # The name in the server's certificate, if it differs from the address.
    certificate_name: str | None
    proxy: str | None
    authorization: Authorization
    # The context's namespace.
    namespace: str
    # The user to impersonate.
    acting_as: str | None = None
    # Credentials for a service behind the API server's proxy, because the proxy removes Authorization.
    passed_on: Authorization | None = None
    # The cluster's extensions in the kubeconfig, by name. They aren't validated.
    extensions: Mapping[str, Any] = field(default_factory=dict)


def find_server(
    kubeconfig: str | None = None, context: str | None = None, *, cluster: str | None = None, user: str | None = None
) -> Server:
    """Returns the server of a kubeconfig's context, or else, inside a pod, the pod's. Raises NoCluster.

    `cluster` and `user` name entries of the kubeconfig that replace the context's.
    """
    try:
        found = read_kubeconfig(kubeconfig, context, cluster=cluster, user=user)
        server = _with_account(_of_pod()) if found is None else _of_kubeconfig(found)
        place = "the proxy of the environment" if found is None else f"kubeconfig {found.path}: proxy-url"
        require_socks(place, server)
    except KubeconfigError as error:
        raise NoCluster(f"{error}.") from error
    return server


def address_of(kubeconfig: str | None = None, context: str | None = None) -> Server:
    """Returns the API server without credentials, for programs that use their viewers' tokens. Raises NoCluster."""
    try:
        found = read_kubeconfig(kubeconfig, context)
        if found is None:
            return _of_pod()
        return _of_kubeconfig(replace(found, user={}, plugin=None, has_provider=False))
    except KubeconfigError as error:
        raise NoCluster(f"{error}.") from error


def for_viewer(server: Server, token: str) -> Server:
    """Returns the server with a viewer's token. Get `server` from `address_of`: it must contain no credentials."""
    return replace(server, authorization=Fixed(f"Bearer {token}"))


def require_socks(place: str, server: Server) -> None:
    """Raises KubeconfigError if the proxy needs a package that isn't installed. The message names `place`."""
    if (server.proxy or "").startswith("socks") and find_spec("socks") is None:
        raise KubeconfigError(f"{place}: a SOCKS proxy needs PySocks: pip install pysocks")


def server_for(kubeconfig: str | os.PathLike[str] | None, context: str | None) -> Server:
    """Returns the server as `find_server` does. Raises NoCluster and InvalidRequest.

    The messages name Python arguments (`context=`) instead of options (`--context`).
    """
    if kubeconfig is not None:
        require("kubeconfig", kubeconfig, (str, os.PathLike), "the path of a file")
        kubeconfig = os.fspath(kubeconfig)
    require("context", context, OPTIONAL_TEXT, "the name of a context as text")
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
        authorization = _provider_token(found)
    elif found.user.get("tokenFile"):
        # As in kubectl, the file takes precedence over the kubeconfig's token.
        authorization = TokenFile(Path(found.user["tokenFile"]), found.user.get("token", ""))
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
    """Returns the API server's address inside a pod, without credentials. Raises NoCluster and KubeconfigError."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    authority = Path(os.environ.get(AUTHORITY_VARIABLE) or SERVICE_ACCOUNT / "ca.crt")
    if not (host and port and authority.is_file()):
        raise NoCluster(NO_CLUSTER)
    address = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    tls = tls_context("the pod", {"certificate-authority": str(authority)}, {})
    return Server(address, tls, None, environment_proxy(address), Fixed(None), "default")


def _with_account(server: Server) -> Server:
    """Returns the server with the pod's service account. Raises NoCluster."""
    token = TokenFile(SERVICE_ACCOUNT / "token")
    if token() is not None:
        with suppress(OSError, ValueError):
            namespace = (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
            return replace(server, authorization=token, namespace=namespace)
    raise NoCluster(NO_CLUSTER)


def environment_proxy(address: str) -> str | None:
    """Returns the proxy for an address according to HTTPS_PROXY or HTTP_PROXY, or None."""
    variables = getproxies_environment()
    parts = urlsplit(address)
    proxy = variables.get(parts.scheme)
    if not proxy or _is_excepted(parts.hostname or "", parts.port, parts.scheme, variables.get("no", "")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_excepted(host: str, port: int | None, scheme: str, rules: str) -> bool:
    own_port = str(port or {"http": 80, "https": 443}[scheme])
    number = _address(host)
    if host == "localhost" or (number is not None and number.is_loopback):
        return True
    for rule in filter(None, (rule.strip().lower() for rule in rules.split(","))):
        if rule == "*":
            return True
        if number is not None and "/" in rule:
            with suppress(ValueError):
                if number in ipaddress.ip_network(rule, strict=False):
                    return True
            continue
        name, separator, wanted = rule.rpartition(":")
        if not separator or not wanted.isdigit() or _address(rule) is not None:
            name, wanted = rule, own_port
        name = name.strip("[]").removeprefix("*")
        if wanted != own_port:
            continue
        if host == name or host.endswith(name if name.startswith(".") else f".{name}"):
            return True
    return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def tls_context(place: str, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    """Returns the TLS context for a kubeconfig's cluster and user. Raises KubeconfigError, which names `place`."""
    # Since Python 3.13, urllib3's contexts and create_default_context refuse certificates that lack some extensions.
    # Certificates from clusters' own authorities lack these extensions, and kubectl accepts such certificates.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not (cluster.get("certificate-authority") or cluster.get("certificate-authority-data")):
        context.load_default_certs()
    load_certificates(context, place, cluster, user)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def load_certificates(context: ssl.SSLContext, place: str, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> None:
    """Loads a kubeconfig cluster's authority and a user's certificate. Raises KubeconfigError."""
    # `ssl` loads certificates only from files. Other users can't read this folder.
    with TemporaryDirectory(prefix="trainmaster-") as folder:
        authority = _file(folder, cluster, "certificate-authority")
        certificate, key = _file(folder, user, "client-certificate"), _file(folder, user, "client-key")
        check_certificates(place, authority, certificate, key)
        if authority is not None:
            context.load_verify_locations(cafile=authority)
        if certificate is not None:
            context.load_cert_chain(certificate, key)


def _file(folder: str, fields: Mapping[str, Any], name: str) -> str | None:
    """Returns the path of a new file with the data in the field `name`-data, or else the path in the field `name`."""
    data = fields.get(f"{name}-data")
    if not data:
        return fields.get(name)
    path = Path(folder) / name
    path.write_bytes(base64.b64decode(data))
    return str(path)


@dataclass(frozen=True)
class Fixed:
    """Fixed is a constant header with a token or a name and password, or no header."""

    # The header is secret, so `repr` doesn't show it.
    header: str | None = field(repr=False)

    @classmethod
    def of(cls, user: Mapping[str, Any]) -> Fixed:
        """Returns the header for a kubeconfig's user."""
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
    """TokenFile reads a token from a file that is rewritten, for example by the kubelet for a service account."""

    path: Path
    token: str = field(default="", repr=False)
    read_at: float = -math.inf

    def __call__(self) -> str | None:
        if time.monotonic() - self.read_at >= REREAD_SECONDS:
            self.read_at = time.monotonic()
            # While the file is being replaced, the old token is used. The API server refuses a token that has expired.
            with suppress(OSError, ValueError):
                self.token = self.path.read_text(encoding="utf-8").strip() or self.token
        return f"Bearer {self.token}" if self.token else None


@dataclass
class PluginCredentials:
    """PluginCredentials gets credentials from an exec plugin, and runs the plugin again when the credentials expire."""

    plugin: Plugin
    credentials: Credentials
    # The context that receives the plugin's next certificate, or None without TLS.
    context: ssl.SSLContext | None

    def __call__(self) -> str | None:
        if self.credentials.expired:
            self.credentials = self.plugin.run()
            if self.context is not None and self.credentials.certificate:
                pair = {"client-certificate": self.credentials.certificate, "client-key": self.credentials.key}
                user = {f"{name}-data": base64.b64encode(text.encode()) for name, text in pair.items()}
                load_certificates(self.context, self.plugin.place, {}, user)
        return f"Bearer {self.credentials.token}" if self.credentials.token else None


def _provider_token(found: Kubeconfig) -> Authorization:
    """Gets tokens from a kubeconfig's auth-provider through the official client. Raises KubeconfigError."""
    # The console doesn't require the official client, because few kubeconfigs need it and importing it takes longer
    # than a whole command.
    try:
        from kubernetes.client import Configuration
        from kubernetes.config import load_kube_config
    except ImportError as error:
        raise KubeconfigError(
            f"kubeconfig {found.path}: the user has an auth-provider, which needs another package: "
            "pip install kubernetes; or log in with an exec plugin"
        ) from error

    configuration = Configuration()

    def token() -> str | None:
        try:
            value: str | None = configuration.get_api_key_with_prefix("BearerToken")
        except Exception as error:
            raise found.without_token(error) from error
        return value

    try:
        load_kube_config(found.path, found.context, client_configuration=configuration)
    except Exception as error:
        # The loader asks an identity provider over HTTP, so it can raise any error.
        raise found.without_token(error) from error
    return token

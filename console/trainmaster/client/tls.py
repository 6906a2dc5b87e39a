"""A kubeconfig's certificates become one TLS context, which urllib3 and aiohttp use alike.

`ssl` loads certificates and keys from files only, so what a kubeconfig holds itself is written to a folder that nobody
else may read, and that is gone when it has been loaded.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trainmaster_operator.kubeconfig import check_certificates


def tls_context(place: str, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    """Returns the context of a cluster's and a user's fields. Raises KubeconfigError, which names `place`."""
    # Not what urllib3 or create_default_context make: since Python 3.13 these refuse certificates without extensions
    # that clusters' own authorities leave out, and kubectl accepts.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    with TemporaryDirectory(prefix="trainmaster-") as folder:
        authority = _file(folder, cluster, "certificate-authority")
        certificate, key = _file(folder, user, "client-certificate"), _file(folder, user, "client-key")
        check_certificates(place, authority, certificate, key)
        if authority is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(cafile=authority)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def load_certificate(context: ssl.SSLContext, place: str, certificate: str, key: str) -> None:
    """Gives the context another certificate, in PEM, for the connections to come. Raises KubeconfigError."""
    with TemporaryDirectory(prefix="trainmaster-") as folder:
        paths = []
        for name, text in (("certificate", certificate), ("key", key)):
            paths.append(_written(folder, name, text.encode()))
        check_certificates(place, None, *paths)
        context.load_cert_chain(*paths)


def _file(folder: str, fields: Mapping[str, Any], name: str) -> str | None:
    """Returns the path of a file with what `name`-data or `name` says."""
    data = fields.get(f"{name}-data")
    return _written(folder, name, base64.b64decode(data)) if data else fields.get(name)


def _written(folder: str, name: str, content: bytes) -> str:
    path = Path(folder) / name
    path.write_bytes(content)
    return str(path)

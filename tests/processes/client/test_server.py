"""Servers use TLS, ask for certificates and tokens, or are behind a proxy, as kubeconfigs describe them."""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import os
import ssl
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from trainmaster.client import NoCluster
from trainmaster.client import server as servers
from trainmaster.client.asynchronous import AiohttpTransport
from trainmaster.client.server import Server, TokenFile, find_server
from trainmaster.client.transport import HttpTransport

AUTHORITY = trustme.CA()
ANN = AUTHORITY.issue_cert("ann@example.com")


@dataclass
class Served:
    """Holds a server's port, and the requests that it received."""

    port: int = 0
    headers: list[Message] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    people: list[str] = field(default_factory=list)


@contextmanager
def serving(name: str | None = "127.0.0.1", *, asks_for_certificate: bool = False) -> Iterator[Served]:
    """Serves with a certificate for that name, or without TLS; answers every request with an empty list."""
    served = Served()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.headers.append(self.headers)
            served.paths.append(self.path)
            if isinstance(self.connection, ssl.SSLSocket):
                certificate: Any = self.connection.getpeercert() or {}
                served.people += [value for kind, value in certificate.get("subjectAltName", ()) if kind == "email"]
            body = b'{"kind": "List", "items": []}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if name is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            AUTHORITY.issue_cert(name).configure_cert(context)
            if asks_for_certificate:
                AUTHORITY.configure_trust(context)
                context.verify_mode = ssl.CERT_REQUIRED
            server.socket = context.wrap_socket(server.socket, server_side=True)
        served.port = server.server_port
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield served
        finally:
            server.shutdown()


async def asked(server: Server) -> None:
    transport = AiohttpTransport(server)
    try:
        assert (await transport.request("GET", "/api"))["items"] == []
    finally:
        await transport.close()


def data(pem: trustme.Blob) -> str:
    return base64.b64encode(pem.bytes()).decode()


TRUSTED = {"certificate-authority-data": data(AUTHORITY.cert_pem)}
CERTIFICATE = {
    "client-certificate-data": data(ANN.cert_chain_pems[0]),
    "client-key-data": data(ANN.private_key_pem),
}


def connected(
    folder: Path, served: Served, cluster: Mapping[str, Any], user: Mapping[str, Any] | None = None
) -> HttpTransport:
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{served.port}", **cluster}}],
        "users": [{"name": "c", "user": dict(user or {})}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    server = find_server(str(path))
    assert server.namespace == "team"
    return HttpTransport(server)


def test_a_server_is_trusted_by_the_kubeconfigs_authority_and_no_other(tmp_path: Path) -> None:
    with serving() as served:
        assert connected(tmp_path, served, TRUSTED).request("GET", "/api")["items"] == []
        other = {"certificate-authority-data": data(trustme.CA().cert_pem)}
        with pytest.raises(NoCluster, match=r"can't be trusted: .*; the kubeconfig's certificate-authority is not the"):
            connected(tmp_path, served, other).request("GET", "/api")
        with pytest.raises(NoCluster, match=r"can't be trusted: "):
            connected(tmp_path, served, {}).request("GET", "/api")


def test_a_certificate_of_another_name_is_refused_unless_the_kubeconfig_gives_it(tmp_path: Path) -> None:
    with serving("east.example.com") as served:
        with pytest.raises(NoCluster, match=r"can't be trusted: .*127\.0\.0\.1"):
            connected(tmp_path, served, TRUSTED).request("GET", "/api")
        named = {**TRUSTED, "tls-server-name": "east.example.com"}
        assert connected(tmp_path, served, named).request("GET", "/api")["items"] == []
        asyncio.run(asked(connected(tmp_path, served, named).server))
        with pytest.raises(NoCluster, match=r"can't be trusted: .*127\.0\.0\.1"):
            asyncio.run(asked(connected(tmp_path, served, TRUSTED).server))


def test_without_verification_nothing_is_asked_and_nothing_is_warned_of(tmp_path: Path) -> None:
    with serving("east.example.com") as served, warnings.catch_warnings():
        warnings.simplefilter("error")
        transport = connected(tmp_path, served, {"insecure-skip-tls-verify": True})
        assert transport.request("GET", "/api")["items"] == []


def test_a_certificate_says_who_asks_and_no_file_is_left_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    with serving(asks_for_certificate=True) as served:
        connected(tmp_path, served, TRUSTED, CERTIFICATE).request("GET", "/api")
        assert served.people == ["ann@example.com"]
        with pytest.raises(NoCluster):
            connected(tmp_path, served, TRUSTED).request("GET", "/api")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_plugins_certificate_is_replaced_when_it_expires(tmp_path: Path) -> None:
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {
            "clientCertificateData": ANN.cert_chain_pems[0].bytes().decode(),
            "clientKeyData": ANN.private_key_pem.bytes().decode(),
            "expirationTimestamp": "2020-01-01T00:00:00Z",
        },
    }
    (tmp_path / "answer").write_text(json.dumps(answer))
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\necho >> {tmp_path}/runs\ncat {tmp_path}/answer\n")
    plugin.chmod(0o755)
    user = {"exec": {"command": "./plugin", "apiVersion": "client.authentication.k8s.io/v1"}}
    with serving(asks_for_certificate=True) as served:
        transport = connected(tmp_path, served, TRUSTED, user)
        transport.request("GET", "/api")
        assert served.people == ["ann@example.com"]
        assert len((tmp_path / "runs").read_text()) == 2


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({"token": "secret"}, "Bearer secret"),
        ({"username": "ann", "password": "a:b"}, "Basic YW5uOmE6Yg=="),
        ({}, None),
    ],
)
def test_tokens_and_passwords_go_into_the_header(tmp_path: Path, user: dict[str, str], header: str | None) -> None:
    with serving(None) as served:
        address = {"server": f"http://127.0.0.1:{served.port}/clusters/c/"}
        connected(tmp_path, served, address, user).request("GET", "/api")
    assert served.headers[0].get("Authorization") == header
    assert served.paths == ["/clusters/c/api"]


def test_a_kubeconfigs_proxy_gets_the_request_and_its_own_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    with serving(None) as proxy:
        address = {"server": "http://east.invalid:1", "proxy-url": f"http://ann:pw@127.0.0.1:{proxy.port}"}
        connected(tmp_path, proxy, address).request("GET", "/api")
        asyncio.run(asked(connected(tmp_path, proxy, address).server))
    assert proxy.paths == ["http://east.invalid:1/api"] * 2
    assert [each["Proxy-Authorization"] for each in proxy.headers] == ["Basic YW5uOnB3"] * 2


def test_a_pod_asks_with_its_service_account_whose_token_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with serving() as served:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(served.port))
        with pytest.raises(NoCluster, match=r"^No cluster is configured: set KUBECONFIG"):
            find_server()
        (tmp_path / "ca.crt").write_bytes(AUTHORITY.cert_pem.bytes())
        (tmp_path / "token").write_text("first\n")
        (tmp_path / "namespace").write_text("team\n")
        server = find_server()
        transport, namespace = HttpTransport(server), server.namespace
        transport.request("GET", "/api")
        (tmp_path / "token").write_text("second\n")
        transport.request("GET", "/api")
        authorization = transport.server.authorization
        assert isinstance(authorization, TokenFile)
        authorization.read_at = time.monotonic() - 61
        transport.request("GET", "/api")
        (tmp_path / "token").unlink()
        authorization.read_at = time.monotonic() - 61
        transport.request("GET", "/api")
    assert namespace == "team"
    assert [each["Authorization"] for each in served.headers] == [
        *("Bearer first", "Bearer first", "Bearer second", "Bearer second")
    ]


def test_a_kubeconfig_s_token_file_is_read_again_and_counts_before_its_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    with serving(None) as served:
        address = f"http://127.0.0.1:{served.port}"
        for user in ({"tokenFile": "token"}, {"tokenFile": "token", "token": "old"}):
            transport = connected(tmp_path, served, {"server": address}, user)
            transport.request("GET", "/api")
        (tmp_path / "token").write_text("second\n")
        authorization = transport.server.authorization
        assert isinstance(authorization, TokenFile)
        authorization.read_at = time.monotonic() - 61
        transport.request("GET", "/api")
        (tmp_path / "token").unlink()
        transport = connected(tmp_path, served, {"server": address}, user)
        transport.request("GET", "/api")
    assert [each["Authorization"] for each in served.headers] == [
        *("Bearer first", "Bearer first", "Bearer second", "Bearer old")
    ]


def test_the_official_client_is_loaded_for_auth_providers_only(tmp_path: Path) -> None:
    """Importing it takes longer than a command."""
    user = {"auth-provider": {"name": "oidc", "config": {"id-token": "a.b"}}}
    with serving(None) as served:
        address = f"http://127.0.0.1:{served.port}"
        program = (
            "import sys; from trainmaster.client import JobClient; t = JobClient(kubeconfig=sys.argv[1]).transport; "
            "t.request('GET', '/api'); print('kubernetes' in sys.modules, 'asyncio' in sys.modules)"
        )
        for each, loaded in (({"token": "t"}, "False False\n"), (user, "True")):
            connected(tmp_path, served, {"server": address})
            document = yaml.safe_load((tmp_path / "kubeconfig").read_text())
            document["users"][0]["user"] = each
            (tmp_path / "kubeconfig").write_text(yaml.safe_dump(document))
            done = subprocess.run(
                [sys.executable, "-c", program, str(tmp_path / "kubeconfig")],
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "NO_PROXY": "*"},
            )
            assert done.stdout.startswith(loaded)
        program = f"import sys; sys.modules['kubernetes'] = None; {program}"
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "kubeconfig")], capture_output=True, text=True, check=False
        )
        assert "the user has an auth-provider, which needs another package: pip install kubernetes" in done.stderr

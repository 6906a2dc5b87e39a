"""A history is reached over real connections: behind the API server's proxy, at its own address, and behind TLS."""

from __future__ import annotations

import asyncio
import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import trustme
import yaml
from typer.testing import CliRunner

from tests.unit.client.history.recorded import PROXY, RecordedHistory
from trainmaster.cli import dtj
from trainmaster.client import AsyncJobClient, InvalidRequest, JobClient, JobNotFound, NoCluster

AUTHORITY = trustme.CA()
NO_ROLE = {"kind": "Status", "code": 404, "message": "clusterroles not found"}


@contextmanager
def serving(history: RecordedHistory | None, *, tls: bool = False) -> Iterator[tuple[str, list[Message]]]:
    """Serves a history (None: an API server without one); yields its address and its requests' headers."""
    asked: list[Message] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers)
            parts = urlsplit(self.path)
            status, answer = 200, NO_ROLE
            try:
                if history is None:
                    status = 404
                else:
                    answer = history.request("GET", parts.path, query=dict(parse_qsl(parts.query)))
            except JobNotFound as error:
                status, answer = 404, {"kind": "Status", "code": 404, "message": str(error)}
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            AUTHORITY.issue_cert("127.0.0.1").configure_cert(context)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINMASTER_HISTORY", raising=False)


def kubeconfig(folder: Path, server: str = "http://127.0.0.1:9", **user: Any) -> str:
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "c", "user": user or {"token": "ann's"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def run(*words: str) -> Any:
    return CliRunner().invoke(dtj.app, ["history", *words])


def test_curves_come_through_the_api_servers_proxy_to_programs_with_a_loop_and_without(tmp_path: Path) -> None:
    history = RecordedHistory(prefix=PROXY)
    with serving(history) as (address, asked):
        path = kubeconfig(tmp_path, address)
        found = JobClient(kubeconfig=path).history("bert-mrpc")

        async def other() -> dict[str, list[Any]]:
            async with AsyncJobClient(kubeconfig=path) as jobs:
                return await jobs.history("bert-mrpc")

        assert found == asyncio.run(other())
    assert found["loss"] == [point["loss"] for point in history.points]
    assert {message["X-Trainmaster-Authorization"] for message in asked} == {"Bearer ann's"}


def test_a_program_names_a_history_and_a_token(tmp_path: Path) -> None:
    with serving(RecordedHistory()) as (address, asked):
        jobs = JobClient(kubeconfig=kubeconfig(tmp_path, username="ann", password="secret"))
        assert jobs.history("bert-mrpc", history=address, token="ann's")["step"][-1] > 990
        with pytest.raises(JobNotFound, match="No job other was recorded in namespace team"):
            jobs.history("other", history=address, token="ann's")
        with pytest.raises(InvalidRequest, match="uid is of type int"):
            jobs.history("bert-mrpc", uid=7)  # type: ignore[arg-type]
    assert {message["Authorization"] for message in asked} == {"Bearer ann's"}


def test_a_client_whose_transport_goes_nowhere_has_no_history() -> None:
    with pytest.raises(InvalidRequest, match="doesn't name its cluster"):
        JobClient("team", transport=RecordedHistory()).history("bert-mrpc")


def test_a_cluster_without_a_history_is_said(tmp_path: Path) -> None:
    with serving(None) as (address, _):
        result = run("--kubeconfig", kubeconfig(tmp_path, address))
        assert result.exit_code == 1
        assert result.stderr.startswith(f"error: The cluster at {address} announces no history (cluster role")
        with pytest.raises(NoCluster, match="announces no history"):
            JobClient(kubeconfig=kubeconfig(tmp_path, address)).history("bert-mrpc")


def test_the_command_asks_through_the_proxy_and_at_an_address(tmp_path: Path) -> None:
    for prefix in (PROXY, ""):
        with serving(RecordedHistory(prefix=prefix)) as (address, asked):
            if prefix:
                result = run("--kubeconfig", kubeconfig(tmp_path, address))
            else:
                result = run("--kubeconfig", kubeconfig(tmp_path), "--history", f"{address}/", "--token", "t")
            assert (result.exit_code, result.stderr) == (0, "")
            assert "bert-mrpc  Succeeded (deleted)" in result.stdout
            assert asked[0]["X-Trainmaster-Authorization"] == ("Bearer ann's" if prefix else "Bearer t")


def test_a_history_behind_tls_is_trusted_by_its_authority(tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    authority.write_bytes(AUTHORITY.cert_pem.bytes())
    with serving(RecordedHistory(), tls=True) as (address, asked):
        options = ("--kubeconfig", kubeconfig(tmp_path), "--history", address)
        result = run(*options)
        assert result.exit_code == 1 and asked == []
        assert f"The history at {address} can't be trusted: " in result.stderr and "(--history-ca)" in result.stderr
        assert run(*options, "--history-ca", str(authority)).exit_code == 0


def test_who_has_no_token_and_who_asks_for_another_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    with serving(RecordedHistory(prefix=PROXY)) as (address, asked):
        result = run("--kubeconfig", kubeconfig(tmp_path, address, username="ann", password="secret"))
        assert result.exit_code == 1 and "error: A history knows you by a bearer token" in result.stderr
        result = run("--kubeconfig", kubeconfig(tmp_path, address), "--as", "bob")
        assert result.exit_code == 1 and "can't be asked on behalf of others" in result.stderr
        assert asked == []


def test_what_doesnt_answer_is_the_history(tmp_path: Path) -> None:
    result = run("--kubeconfig", kubeconfig(tmp_path), "--history", "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: The history at http://127.0.0.1:9 doesn't answer: Connection refused")

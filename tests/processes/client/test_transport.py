"""Errors of a connection are sentences that say what to do."""

from __future__ import annotations

import http.server
import threading
from pathlib import Path

import pytest

from tests.processes.controller.fake_http import kubeconfig
from trainmaster.client import JobClient, JobNotFound, NoCluster


def test_a_kubeconfig_that_isnt_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoCluster, match=r"^The kubeconfig /none \(--kubeconfig\) doesn't exist\.$"):
        JobClient(kubeconfig="/none")
    monkeypatch.setenv("KUBECONFIG", "/none:/nowhere")
    with pytest.raises(NoCluster, match=r"^The kubeconfig /none:/nowhere \(KUBECONFIG\) doesn't exist\.$"):
        JobClient()


def test_a_context_that_isnt_there_is_named_without_a_second_full_stop(tmp_path: Path) -> None:
    with pytest.raises(NoCluster, match=r"^The kubeconfig can't be used: .*name nope.*[^.]\.$"):
        JobClient(kubeconfig=kubeconfig(tmp_path, "http://127.0.0.1:1"), context="nope")


class WithoutTheType(http.server.BaseHTTPRequestHandler):
    """Answers as an API server does where nothing of a group is served."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.end_headers()
        self.wfile.write(b"404 page not found\n")

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def test_a_cluster_without_the_custom_resource_says_how_to_get_it(tmp_path: Path) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), WithoutTheType) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        jobs = JobClient(kubeconfig=kubeconfig(tmp_path, f"http://127.0.0.1:{server.server_port}"))
        with pytest.raises(JobNotFound, match=r"trainmaster crd \| kubectl apply"):
            jobs.list()
        server.shutdown()

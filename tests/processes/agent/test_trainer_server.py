"""The server for reports of Hugging Face's Trainer limits who may report and how much, and passes reports on."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainmaster_operator.agent.loop import Loop
from trainmaster_operator.agent.progress import trainer
from trainmaster_operator.agent.progress.trainer import TrainerServer


class Served:
    """Runs the server in its own loop, and records what it receives."""

    def __init__(self, folder: Path) -> None:
        self.received: list[Any] = []
        self.token_file = folder / "token"
        self._loop = Loop()
        self.server = TrainerServer(self._loop, self.received.append)
        self.port = self.server.serve(str(self.token_file))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._loop.stopped:
            self._loop.run_once()

    def end(self) -> None:
        self._loop.call_soon(self._loop.stop)
        self._thread.join()

    def post(self, body: bytes, token: str | None = None, path: str = "/v1/trainer-status") -> int:
        """Posts as `KubeflowCallback` does."""
        headers = {"Authorization": f"Bearer {token or self.token_file.read_text()}"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body, headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    made.end()


def test_a_report_with_the_attempts_token_is_received(served: Served) -> None:
    assert served.token_file.stat().st_mode & 0o777 == 0o600
    assert served.post(b'{"trainerStatus": {}}') == 200
    assert served.received == [{"trainerStatus": {}}]
    assert served.post(b"not JSON") == 400
    assert served.post(b"[" * 60_000) == 400
    assert served.post(b"{}", path="/v1/state") == 404
    assert served.post(b" " * 70_000) == 413
    assert len(served.received) == 1


def test_another_attempts_token_is_worth_nothing(served: Served, tmp_path: Path) -> None:
    before = served.token_file.read_text()
    served.server.serve(str(tmp_path / "next"))
    assert served.post(b"{}", before) == 401
    assert served.post(b"{}", "") == 401
    assert served.post(b"{}", (tmp_path / "next").read_text()) == 200


def test_too_many_reports_are_refused(served: Served) -> None:
    answers = [served.post(b"{}") for _ in range(30)]
    assert answers[:20] == [200] * 20 and 429 in answers
    assert len(served.received) == answers.count(200)


def test_connections_that_say_nothing_give_way(served: Served) -> None:
    idle = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(trainer.MAX_CONNECTIONS + 2)]
    assert served.post(b"{}") == 200
    for sock in idle:
        sock.close()


def test_a_request_that_does_not_come_in_time_is_given_up(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "REQUEST_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", served.port)) as sock:
        sock.sendall(b"POST /v1/trainer-status HTTP/1.1\r\nAuth")
        sock.settimeout(10)
        assert sock.recv(100) == b""

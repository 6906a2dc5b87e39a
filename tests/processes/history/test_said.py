"""`history.server.run_history` reports a port that is in use, and a missing writer's token."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from trainmaster.client.errors import InvalidRequest
from trainmaster.history.server import run_history
from trainmaster.history.settings import HistorySettings


async def _run(folder: Path, **settings: Any) -> None:
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    stop = asyncio.Event()
    stop.set()
    file = str(folder / "h.sqlite")
    found = HistorySettings(**{"file": file, "address": "127.0.0.1", "kubeconfig": str(kubeconfig), **settings})
    await run_history(found, stop)


async def test_a_port_that_is_taken_is_said_plainly(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidRequest) as raised:
            await _run(tmp_path, port=port)
    assert str(raised.value) == (
        f"127.0.0.1 port {port} can't be listened on: Address already in use; give --address and --port."
    )


async def test_who_gives_no_writers_token_learns_that_nothing_is_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await _run(tmp_path, port=0)
    assert "Nothing is recorded, only read: there is no --writer-token-file." in caplog.text
    caplog.clear()
    token = tmp_path / "token"
    await _run(tmp_path, port=0, writer_token_file=str(token))
    assert f"Nothing is recorded until the writer's token is in {token}" in caplog.text
    caplog.clear()
    token.write_text("secret")
    await _run(tmp_path, port=0, writer_token_file=str(token))
    assert "Nothing is recorded" not in caplog.text

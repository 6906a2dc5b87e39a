"""The history of `kubectl dtj history` is a fake at a known address."""

from __future__ import annotations

import pytest

from tests.unit.client.history.recorded import RecordedHistory
from trainmaster.cli.commands import history as command
from trainmaster.cli.connection import Connection
from trainmaster.client.blocking import Blocking
from trainmaster.client.history import HistoryReader


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> RecordedHistory:
    fake = RecordedHistory()

    def opened(connection: Connection, *_options: object) -> tuple[HistoryReader, str]:
        return HistoryReader(Blocking(fake)), connection.namespace or "team"

    monkeypatch.setattr(command, "open_history", opened)
    return fake

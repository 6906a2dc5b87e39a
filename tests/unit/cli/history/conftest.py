"""The history of `kubectl dtj history` is a fake, which nobody has to look for."""

from __future__ import annotations

import pytest

from tests.unit.client.history.recorded import RecordedHistory
from trainmaster.cli import history as opening
from trainmaster.cli.commands import history as command
from trainmaster.cli.connection import Connection
from trainmaster.cli.history import HistoryOptions, OpenHistory
from trainmaster.client.blocking import Blocking
from trainmaster.client.history import HistoryReader


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> RecordedHistory:
    fake = RecordedHistory()

    def opened(connection: Connection, options: HistoryOptions) -> OpenHistory:
        return OpenHistory(HistoryReader(Blocking(fake)), connection.namespace or "team")

    for module in (command, opening):
        monkeypatch.setattr(module, "open_history", opened)
    return fake

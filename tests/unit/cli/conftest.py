"""The cluster of `kubectl dtj` is a fake. Watches that it ends at once reopen at once, and pods are read again soon."""

from __future__ import annotations

import pytest

from tests.unit.client.fakes import FakeTransport
from trainmaster.cli.connection import Connection
from trainmaster.client import JobClient, log_reader, watching


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "REOPEN_SECONDS", 0.0)
    for name in ("POLL_SECONDS", "CALM_SECONDS"):
        monkeypatch.setattr(log_reader, name, 0.02)
    monkeypatch.setattr(log_reader, "SILENT_SECONDS", 0.2)


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> FakeTransport:
    fake = FakeTransport()
    monkeypatch.setattr(Connection, "client", lambda options: JobClient(options.namespace or "default", transport=fake))
    return fake

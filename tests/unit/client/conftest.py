"""A watch that a fake ends at once is opened again at once."""

from __future__ import annotations

import pytest

from trainmaster.client import watching


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "REOPEN_SECONDS", 0.0)

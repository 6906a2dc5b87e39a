"""If a fake ends a watch at once, it is opened again at once."""

from __future__ import annotations

import pytest

from trainmaster.client import watching


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "REOPEN_SECONDS", 0.0)

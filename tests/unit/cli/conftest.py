"""A watch that a fake ends at once is opened again at once, and the next look at the pods comes soon."""

from __future__ import annotations

import pytest

from trainmaster.cli import following
from trainmaster.client import jobs


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "REOPEN_SECONDS", 0.0)
    for name in ("POLL_SECONDS", "CALM_SECONDS"):
        monkeypatch.setattr(following, name, 0.02)
    monkeypatch.setattr(following, "SILENT_SECONDS", 0.2)

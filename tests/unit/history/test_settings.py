"""`history.settings` reads options and variables, and refuses wrong values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from trainmaster.cli.commands import history_server
from trainmaster.history.settings import HistorySettings


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[..., HistorySettings | str]:
    """Runs the command until the history would begin, and returns the settings or the error."""
    seen: list[HistorySettings] = []
    monkeypatch.setattr(history_server, "_run", lambda settings: seen.append(settings) or 0)

    def run(*arguments: str, **variables: str) -> HistorySettings | str:
        seen.clear()
        result = CliRunner().invoke(history_server.app, ["serve", *arguments], env=variables)
        return seen[0] if seen else result.output

    return run


@pytest.mark.parametrize(
    ("arguments", "variables", "setting", "value"),
    [
        ([], {}, "max_bytes", 1024**3),
        (["--max-bytes", "500M"], {}, "max_bytes", 500_000_000),
        ([], {"TRAINMASTER_HISTORY_MAX_BYTES": "2Gi"}, "max_bytes", 2 * 1024**3),
        (["--keep-days", "0.5"], {}, "keep_days", 0.5),
        ([], {"TRAINMASTER_HISTORY_LISTEN_PORT": "99"}, "port", 99),
        # Kubernetes sets these variables in pods beside a Service named trainmaster-history.
        ([], {"TRAINMASTER_HISTORY_PORT": "tcp://10.0.0.1:8090"}, "port", 8090),
        ([], {"TRAINMASTER_HISTORY_WRITER_TOKEN_FILE": "/token"}, "writer_token_file", "/token"),
        (["--file", "h.sqlite"], {}, "file", "h.sqlite"),
    ],
)
def test_settings_are_given_by_options_and_variables(
    given: Callable[..., object], arguments: list[str], variables: dict[str, str], setting: str, value: object
) -> None:
    assert getattr(given(*arguments, **variables), setting) == value


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--max-bytes", "much"], "--max-bytes: 'much' is no quantity of bytes; use 1Gi or 500M"),
        (["--max-bytes", "1Mi"], "--max-bytes: '1Mi' is too little; use 16Mi or more"),
        (["--keep-days", "0"], "--keep-days"),
        (["--port", "70000"], "--port"),
    ],
)
def test_what_cant_be_meant_is_refused(given: Callable[..., object], arguments: list[str], sentence: str) -> None:
    assert sentence in " ".join(str(given(*arguments)).split())

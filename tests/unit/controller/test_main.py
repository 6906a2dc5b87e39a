"""`controller.main`: the options of `run` are exactly the fields of the settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from trainmaster_operator.controller import main
from trainmaster_operator.controller.settings import OperatorSettings

DEFAULTS = OperatorSettings()


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., OperatorSettings | str]:
    """Runs `trainmaster-operator run` until the operator would begin, and returns the settings or the error."""
    seen: list[OperatorSettings] = []

    def begin(settings: OperatorSettings) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr(main, "_run", begin)
    monkeypatch.delenv("POD_NAMESPACE", raising=False)

    def run(*arguments: str, **variables: str) -> OperatorSettings | str:
        seen.clear()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            try:
                assert main.main(["run", *arguments]) == 0
            except SystemExit as ended:
                assert ended.code == 2
        return seen[0] if seen else capsys.readouterr().err

    return run


def test_without_options_all_settings_have_their_defaults(given: Callable[..., Any]) -> None:
    assert given("-A") == replace(DEFAULTS, all_namespaces=True)


@pytest.mark.parametrize(
    ("arguments", "variables", "setting", "value"),
    [
        (["-n", "a", "--namespace", "b"], {}, "namespaces", ("a", "b")),
        ([], {"TRAINMASTER_NAMESPACES": "a, b c"}, "namespaces", ("a", "b", "c")),
        (["-n", "a", "-n", "b"], {}, "lease_namespace", "a"),
        (["-n", "a"], {"POD_NAMESPACE": "system"}, "lease_namespace", "system"),
        (["-A"], {"POD_NAMESPACE": "pod", "TRAINMASTER_LEASE_NAMESPACE": "system"}, "lease_namespace", "system"),
        (["-A", "--replace-after", "0"], {}, "replace_after_seconds", None),
        (["-A"], {"TRAINMASTER_REPLACE_AFTER": "2.5"}, "replace_after_seconds", 2.5),
        (["-A", "--no-leader-elect"], {}, "leader_elect", False),
        (["-A"], {"TRAINMASTER_KEEP_LOGS": "false"}, "keep_logs", False),
        (["-A", "--operator-label", "a/b=c"], {}, "operator_labels", (("a/b", "c"),)),
        (["-A"], {"TRAINMASTER_OPERATOR_LABELS": "a=b,c="}, "operator_labels", (("a", "b"), ("c", ""))),
        (["-A"], {"TRAINMASTER_METRICS_NAMESPACES": "m"}, "metrics_namespaces", ("m",)),
        (["-A", "--log-level", "debug"], {}, "log_level", "DEBUG"),
        (["-A", "--agent-port", "1234"], {}, "agent_port", 1234),
        (["-A", "--metrics-port", "0"], {}, "metrics_port", 0),
        (["-A", "--history-url", "http://history:8080/"], {}, "history_url", "http://history:8080"),
        (["-A"], {"TRAINMASTER_HISTORY_URL": ""}, "history_url", None),
        (["-A"], {"TRAINMASTER_HISTORY_TOKEN_FILE": "/t"}, "history_token_file", "/t"),
        (["-A", "--history-seconds", "5"], {}, "history_seconds", 5.0),
    ],
)
def test_an_option_or_its_variable_sets_the_field(
    given: Callable[..., Any], arguments: list[str], variables: dict[str, str], setting: str, value: object
) -> None:
    assert getattr(given(*arguments, **variables), setting) == value


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "choose which jobs to serve"),
        (["-A", "-n", "a"], "not both"),
        (["-A", "--operator-label", "name"], "--operator-label: 'name' has to be NAME=VALUE"),
        (["-n", "Team A"], "--namespace: 'Team' is no name of a namespace; give small letters, digits and '-'"),
        (["-A", "--lease-namespace", "a_b"], "--lease-namespace: 'a_b' is no name of a namespace"),
        (["-A", "--workers", "0"], "--workers: '0' is too small; use at least 1"),
        (["-A", "--workers", "257"], "--workers: '257' is too large; use at most 256"),
        (["-A", "--workers", "many"], "--workers: 'many' is no whole number"),
        (["-A", "--replace-after", "soon"], "--replace-after: 'soon' is no number"),
        (["-A", "--history-url", "history:8080"], "'history:8080' is no address of a history; use http://host:port"),
        (["-A", "--history-url", "http://h/?a=b"], "is no address of a history; use http://host:port, without a query"),
        (["-A", "--history-url", "http://a:b@h/"], "shows it to many; give --history-token-file"),
        (["-A", "--history-seconds", "0"], "--history-seconds: '0' is too small; use at least 0.5"),
        (["-A", "--reach", "magic"], "--reach: 'magic' is not one of 'auto', 'direct', 'proxy'"),
        (["-A", "--lease-seconds", "3"], "unrecognized arguments: --lease-seconds 3"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(
    given: Callable[..., Any], arguments: list[str], problem: str
) -> None:
    output = " ".join(str(given(*arguments)).replace("│", " ").split())
    assert problem in output


def test_a_wrong_variable_is_named(given: Callable[..., Any]) -> None:
    output = str(given("-A", TRAINMASTER_LEADER_ELECT="maybe"))
    assert "--leader-elect (TRAINMASTER_LEADER_ELECT): 'maybe' is neither true nor false; use one of the two" in output


def test_help_shows_every_option_with_its_variable_and_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        main.main(["run", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for part in (
        "TRAINMASTER_WORKERS",
        "default: 8]",
        "Minimum log level.",
        "--no-keep-logs",
        "POD_NAMESPACE",
    ):
        assert part in text, part
    assert "--agent-port" not in text

"""Rules, defaults, the budget and the back-off decide the cost of a failure."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.reconciling.builders import NOW, job
from tools.reasons_page import EXIT_CODES, reasons_page
from trainmaster_operator.api.reasons import REASONS
from trainmaster_operator.api.times import to_text
from trainmaster_operator.api.v1alpha1 import Failure
from trainmaster_operator.reconciling.policies.backoff import delay
from trainmaster_operator.reconciling.policies.failure_rules import choose_response
from trainmaster_operator.wire.report import REASON_BY_EXIT_CODE


def judged(cause: Failure, restarts: int = 0, **policy: Any) -> tuple[str, str]:
    spec = job(failurePolicy=policy).spec
    assert spec is not None
    response = choose_response(spec, cause, restarts)
    return response.answer, response.reason


def cause(reason: str = "Error", code: int | None = 1) -> Failure:
    return Failure(attempt=1, reason=reason, message="worker 1 ended", worker=1, exit_code=code, failed_at=to_text(NOW))


@pytest.mark.parametrize(
    ("of", "policy", "answer"),
    [
        (cause(), {}, ("Restart", "")),
        (cause("LaunchError", 65), {}, ("Fail", "LaunchError")),
        (cause("PreflightMismatch", 67), {}, ("Fail", "PreflightMismatch")),
        (cause("Hung", 68), {}, ("Restart", "")),
        (cause("Hung", 68), {"hang": {"action": "Fail"}}, ("Fail", "Hung")),
        (
            cause("Hung", 68),
            {"hang": {"action": "Fail"}, "rules": [{"reasons": ["Hung"], "action": "Restart"}]},
            ("Restart", ""),
        ),
        (cause(code=2), {"rules": [{"exitCodes": [2], "action": "Fail"}]}, ("Fail", "Error")),
        (cause(code=3), {"rules": [{"exitCodes": [2], "action": "Fail"}]}, ("Restart", "")),
        (
            cause(code=2),
            {"rules": [{"exitCodes": [2], "action": "Ignore"}, {"exitCodes": [2], "action": "Fail"}]},
            ("Ignore", ""),
        ),
        (cause("OOMKilled", 137), {"rules": [{"reasons": ["OOMKilled"], "action": "Fail"}]}, ("Fail", "OOMKilled")),
        (cause("LaunchError", 65), {"rules": [{"reasons": ["LaunchError"], "action": "Restart"}]}, ("Restart", "")),
        (cause("PodDeleted", None), {"maxRestarts": 0}, ("Ignore", "")),
        (cause("Evicted", 1), {"rules": [{"exitCodes": [1], "action": "Fail"}]}, ("Ignore", "")),
        (cause("Surprise"), {}, ("Restart", "")),
    ],
)
def test_the_first_rule_that_matches_wins_then_the_table(
    of: Failure, policy: dict[str, Any], answer: tuple[str, str]
) -> None:
    assert judged(of, **policy) == answer


def test_the_budget() -> None:
    assert judged(cause(), restarts=1, maxRestarts=2) == ("Restart", "")
    assert judged(cause(), restarts=2, maxRestarts=2) == ("Fail", "MaxRestartsExceeded")
    assert judged(cause(), restarts=2, maxRestarts=2, rules=[{"exitCodes": [1], "action": "Ignore"}]) == ("Ignore", "")


@pytest.mark.parametrize(("restarts", "seconds"), [(1, 5), (2, 10), (3, 20), (4, 30), (500, 30)])
def test_the_back_off_grows_to_its_limit(restarts: int, seconds: float) -> None:
    spec = job(failurePolicy={"backoff": {"initialSeconds": 5, "factor": 2, "maxSeconds": 30}}).spec
    assert spec is not None
    assert delay(spec, "Restart", cause=cause(), restarts=restarts, lived=100) == seconds


def test_without_a_back_off_nothing_waits() -> None:
    spec = job().spec
    assert spec is not None
    assert delay(spec, "Restart", cause=cause(), restarts=5, lived=0.1) == 0
    assert delay(spec, "Ignore", cause=cause("Evicted"), restarts=0, lived=0.1) == 0


def test_every_reason_is_documented_and_every_code_leads_to_one() -> None:
    table = reasons_page()
    assert all(f"| `{name}` |" in table for name in REASONS)
    assert set(REASON_BY_EXIT_CODE.values()) <= REASONS.keys()
    for code, name in REASON_BY_EXIT_CODE.items():
        assert EXIT_CODES[name] == code

"""Chooses the response to a failure (Restart, Ignore or Fail) from the job's rules, the reasons and the budget.

The first matching rule applies. If no rule matches, `hang.action` decides about a hang, and `api.reasons` about other
reasons. A disruption is never the job's fault, so rules and budget don't apply.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster_operator.api.reasons import Answer, Strength, known_reason
from trainmaster_operator.api.v1alpha1 import Failure, FailureRule, JobSpec


@dataclass(frozen=True)
class FailureResponse:
    """Restart is a counted restart, Ignore an uncounted one, and Fail ends the job with this reason and message."""

    answer: Answer
    reason: str = ""
    message: str = ""


def choose_response(spec: JobSpec, cause: Failure, restarts: int) -> FailureResponse:
    """Returns the response to a failure after `restarts` counted restarts."""
    if known_reason(cause.reason).strength is Strength.DISRUPTION:
        return FailureResponse("Ignore")
    policy = spec.failure_policy
    rule = next((rule for rule in policy.rules if _matches(rule, cause)), None)
    answer = _answer(spec, cause, rule)
    if answer == "Fail":
        why = " (failurePolicy.rules)" if rule is not None else ""
        return FailureResponse("Fail", cause.reason, f"{cause.message}{why}")
    if answer == "Restart" and restarts >= policy.max_restarts:
        used = f"no restart is left (failurePolicy.maxRestarts is {policy.max_restarts})"
        return FailureResponse("Fail", "MaxRestartsExceeded", f"{cause.message}; {used}")
    return FailureResponse(answer)


def _matches(rule: FailureRule, cause: Failure) -> bool:
    by_code = cause.exit_code is not None and cause.exit_code in (rule.exit_codes or ())
    return by_code or cause.reason in (rule.reasons or ())


def _answer(spec: JobSpec, cause: Failure, rule: FailureRule | None) -> Answer:
    if rule is not None:
        return "Ignore" if rule.action == "Ignore" else rule.action
    if cause.reason == "Hung":
        return spec.failure_policy.hang.action
    return known_reason(cause.reason).answer

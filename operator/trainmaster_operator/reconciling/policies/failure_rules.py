"""Chooses the response to a failure (Restart, Ignore or Fail) from the job's rules, the reasons and the budget.

The first matching rule applies. If no rule matches, `hang.action` decides about a hang, a failure that repeats itself
at the start ends the job, and `api.reasons` decides about all other reasons. A disruption is never the job's fault, so
rules and budget don't apply.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster_operator.api.reasons import Answer, Strength, known_reason
from trainmaster_operator.api.v1alpha1 import Failure, JobSpec


@dataclass(frozen=True)
class FailureResponse:
    """A response restarts the ranks (Restart: counted, Ignore: uncounted), or ends the job for this reason (Fail)."""

    answer: Answer
    reason: str = ""
    message: str = ""


def choose_response(spec: JobSpec, cause: Failure, restarts: int, repeats: Failure | None = None) -> FailureResponse:
    """Returns the response to a failure after `restarts` counted restarts.

    `repeats` is the previous failure if this one repeats it at the start of the program (`policies.repeated`).
    """
    if known_reason(cause.reason).strength is Strength.DISRUPTION:
        return FailureResponse("Ignore")
    policy = spec.failure_policy
    rules = ((rule, rule.reasons or (), rule.exit_codes or ()) for rule in policy.rules)
    rule = next((rule for rule, reasons, codes in rules if cause.reason in reasons or cause.exit_code in codes), None)
    if rule is not None:
        answer: Answer = rule.action
    elif cause.reason == "Hung":
        answer = policy.hang.action
    else:
        answer = known_reason(cause.reason).answer
    if answer == "Restart" and rule is None and repeats is not None:
        again = f"attempt {repeats.attempt} failed in the same way before its first step, so a restart wouldn't help"
        return FailureResponse("Fail", "FailsAtStart", f"{cause.message}; {again}")
    if answer == "Fail":
        why = " (failurePolicy.rules)" if rule is not None else ""
        return FailureResponse("Fail", cause.reason, f"{cause.message}{why}")
    if answer == "Restart" and restarts >= policy.max_restarts:
        used = f"no restart is left (failurePolicy.maxRestarts is {policy.max_restarts})"
        return FailureResponse("Fail", "MaxRestartsExceeded", f"{cause.message}; {used}")
    return FailureResponse(answer)

"""A JobSet's failurePolicy and its Jobs' podFailurePolicy become rules by exit code and reason.

There a rule answers a Job that has failed; here it answers a rank, whose end restarts the group or ends the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainmaster.converting.draft import Draft
from trainmaster.converting.fields import Field, Path, Target

_MAX_RESTARTS: Path = ("spec", "failurePolicy", "maxRestarts")
_RULES: Path = ("spec", "failurePolicy", "rules")
# How a program itself can fail.
_ANY_FAILURE = ["Error", "Signal", "OOMKilled", "Hung"]
_ACTIONS = {
    "FailJobSet": "Fail",
    "RestartJobSet": "Restart",
    "RestartJob": "Restart",
    "RestartJobSetAndIgnoreMaxRestarts": "Ignore",
    "RestartJobAndIgnoreMaxRestarts": "Ignore",
}
_JOB_ACTIONS = {"FailJob": "Fail", "Count": "Restart", "Ignore": "Ignore"}
_MOST_RESTARTS = 1_000_000


def convert_failures(policy: Field | None, jobs: Sequence[Field], names: Sequence[str], draft: Draft) -> None:
    """Puts what a JobSet does about failures into the job. `jobs` are the specs of the Jobs that train, by `names`."""
    exit_codes = [rule for job in jobs for rule in _exit_codes(job)]
    limit = policy.get("maxRestarts") if policy is not None else None
    if limit is not None:
        draft.keep(limit, _MAX_RESTARTS)
    for rule in policy.each("rules") if policy is not None else []:
        _rule(rule, names, exit_codes, draft)
    strategy = policy.get("restartStrategy") if policy is not None else None
    if strategy is not None:
        strategy.dropped("all ranks restart at once, in their pods")
    for job in jobs:
        _job(job, draft)


def _job(job: Field, draft: Draft) -> None:
    """Answers what a Job says of failures, where no rule of the JobSet has used it."""
    retries = job.get("backoffLimit")
    if retries is not None:
        given, asked = draft.at(_MAX_RESTARTS), retries.value
        if given is not None:
            retries.dropped(f"the group restarts as a whole, and spec.failurePolicy.maxRestarts is {given}")
        elif isinstance(asked, int) and asked > _MOST_RESTARTS:
            draft.keep(retries, _MAX_RESTARTS, _MOST_RESTARTS, remark="the most")
        else:
            draft.keep(retries, _MAX_RESTARTS, remark="of the whole group")
    policy = job.get("podFailurePolicy")
    for rule in policy.each("rules") if policy is not None else []:
        if any(leaf.answer is None for leaf in rule.leaves()):
            _pod_rule(rule, draft)


def _pod_rule(rule: Field, draft: Draft) -> None:
    action = rule.text("action")
    if rule.get("onPodConditions") is not None and rule.get("onExitCodes") is None:
        rule.dropped("deleted and evicted pods are disruptions, which never count")
        return
    codes = _codes(rule)
    if codes is None or action not in _JOB_ACTIONS:
        rule.refused("rules answer exit codes from 1 to 255 with Fail, Restart or Ignore; set spec.failurePolicy.rules")
        return
    # A failed Job is restarted by a JobSet that may.
    made = "Restart" if action == "FailJob" and draft.at(_MAX_RESTARTS) else _JOB_ACTIONS[action]
    _add(rule, {"exitCodes": codes, "action": made}, draft)


def _rule(rule: Field, names: Sequence[str], exit_codes: Sequence[tuple[Field, list[int]]], draft: Draft) -> None:
    action = _ACTIONS.get(rule.text("action"))
    targets = rule.get("targetReplicatedJobs")
    of_whom = targets.value if targets is not None and isinstance(targets.value, list) else []
    if of_whom and not set(of_whom) & set(names):
        rule.dropped(f"it is about {', '.join(map(str, of_whom))}, which is no part of the job")
    elif action is None:
        rule.refused("a rule's action is Fail, Restart or Ignore; set spec.failurePolicy.rules")
    elif rule.get("onJobFailureMessagePatterns") is not None:
        rule.refused("failures are told apart by exit code and reason, not by messages; set spec.failurePolicy.rules")
    else:
        _by_reasons(rule, action, exit_codes, draft)
        if of_whom and set(of_whom) < set(names) and targets is not None:
            targets.overruled("a rule answers all workers; what only some of them may do, their program decides")


def _by_reasons(rule: Field, action: str, exit_codes: Sequence[tuple[Field, list[int]]], draft: Draft) -> None:
    given = rule.get("onJobFailureReasons")
    reasons = given.value if given is not None and isinstance(given.value, list) else []
    if not reasons or reasons == ["BackoffLimitExceeded"]:
        if action == "Restart":
            rule.dropped("a failure restarts the group unless a rule says otherwise")
        else:
            _add(rule, {"reasons": _ANY_FAILURE, "action": action}, draft)
    elif reasons == ["PodFailurePolicy"]:
        codes = sorted({code for _, found in exit_codes for code in found})
        if not codes:
            rule.dropped("deleted and evicted pods are disruptions, which never count")
            return
        _add(rule, {"exitCodes": codes, "action": action}, draft)
        for pod_rule, _ in exit_codes:
            pod_rule.became(*_last(draft))
    else:
        rule.refused("only BackoffLimitExceeded and PodFailurePolicy have a like; set spec.failurePolicy.rules")


def _exit_codes(job: Field) -> list[tuple[Field, list[int]]]:
    """Returns the rules that fail a Job at once, with their exit codes."""
    policy = job.get("podFailurePolicy")
    found = [(rule, _codes(rule)) for rule in (policy.each("rules") if policy is not None else [])]
    return [(rule, codes) for rule, codes in found if codes is not None and rule.text("action") == "FailJob"]


def _codes(rule: Field) -> list[int] | None:
    """Returns the exit codes that a Job's rule names; None where it doesn't list them."""
    codes = rule.get("onExitCodes")
    listed: Any = codes.get("values") if codes is not None else None
    if codes is None or codes.text("operator") != "In" or listed is None or not isinstance(listed.value, list):
        return None
    values = [code for code in listed.value if isinstance(code, int) and 1 <= code <= 255]
    return values if values and len(values) == len(listed.value) else None


def _add(field: Field, rule: dict[str, Any], draft: Draft) -> None:
    number = len(draft.at(_RULES) or [])
    draft.set((*_RULES, number), rule)
    field.became(*_last(draft))


def _last(draft: Draft) -> tuple[Target]:
    return (Target((*_RULES, len(draft.at(_RULES)) - 1)),)

"""Converts a JobSet's failurePolicy and its Jobs' podFailurePolicy into our rules about exit codes and reasons.

A JobSet's rule applies to a failed Job. Our rules apply to a failed rank, and restart the group or end the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainmaster.converting.fields import Draft, Field, Path, Target

_MAX_RESTARTS: Path = ("spec", "failurePolicy", "maxRestarts")
_RULES: Path = ("spec", "failurePolicy", "rules")
# Reasons of failures that the program itself causes.
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
_DISRUPTION = "deleted and evicted pods are disruptions, which restart the group and never count"


def convert_failures(policy: Field, jobs: Sequence[Field], names: Sequence[str], draft: Draft) -> None:
    """Puts a JobSet's rules about failures into the job. `jobs` are the specs of the replicatedJobs `names`."""
    draft.keep(policy.get("maxRestarts"), _MAX_RESTARTS)
    for rule in policy.get("rules").items:
        _rule(rule, jobs, names, draft)
    policy.get("restartStrategy").dropped("all ranks restart at once, in their pods")
    for job in jobs:
        _job(job, draft)


def _job(job: Field, draft: Draft) -> None:
    """Answers a Job's fields about failures, unless a JobSet's rule has already answered them."""
    retries, given = job.get("backoffLimit"), draft.at(_MAX_RESTARTS)
    if given is not None:
        retries.dropped(f"the group restarts as a whole, and spec.failurePolicy.maxRestarts is {given}")
    elif (retries.whole() or 0) > _MOST_RESTARTS:
        draft.keep(retries, _MAX_RESTARTS, _MOST_RESTARTS, remark="the most")
    else:
        draft.keep(retries, _MAX_RESTARTS, remark="of the whole group")
    for rule in _pod_rules(job):
        if not rule.is_answered:
            _pod_rule(rule, draft)


def _pod_rule(rule: Field, draft: Draft) -> None:
    action = rule.text("action")
    if _is_disruption(rule) and action == "Ignore":
        rule.dropped(_DISRUPTION)
        return
    codes = _codes(rule)
    if _is_disruption(rule):
        rule.refused(f"{_DISRUPTION}; no rule can change that")
    elif codes is None or action not in _JOB_ACTIONS:
        rule.refused("rules answer exit codes from 1 to 255 with Fail, Restart or Ignore; set spec.failurePolicy.rules")
    else:
        # If the JobSet may restart, a failed Job restarts it, so FailJob becomes Restart.
        made = "Restart" if action == "FailJob" and draft.at(_MAX_RESTARTS) else _JOB_ACTIONS[action]
        _add(rule, {"exitCodes": codes, "action": made}, draft)


def _rule(rule: Field, jobs: Sequence[Field], names: Sequence[str], draft: Draft) -> None:
    action = _ACTIONS.get(rule.text("action"))
    of_whom = rule.listed("targetReplicatedJobs")
    if of_whom and not set(of_whom) & set(names):
        rule.dropped(f"it is about {', '.join(map(str, of_whom))}, which is no part of the job")
    elif action is None:
        rule.refused("a rule's action is Fail, Restart or Ignore; set spec.failurePolicy.rules")
    elif rule.get("onJobFailureMessagePatterns"):
        rule.refused(
            "failures are distinguished by exit code and reason, not by messages; set spec.failurePolicy.rules"
        )
    else:
        _by_reasons(rule, action, jobs, draft)
        if of_whom and set(of_whom) < set(names):
            targets = rule.get("targetReplicatedJobs")
            targets.overruled("a rule applies to all workers; only the program can distinguish them")


def _by_reasons(rule: Field, action: str, jobs: Sequence[Field], draft: Draft) -> None:
    reasons = rule.listed("onJobFailureReasons")
    if reasons == ["PodFailurePolicy"]:
        _by_pod_rules(rule, action, jobs, draft)
    elif not reasons or set(reasons) in ({"BackoffLimitExceeded"}, {"BackoffLimitExceeded", "PodFailurePolicy"}):
        if action == "Restart":
            rule.dropped("a failure restarts the group unless a rule says otherwise")
            return
        tries = any(job.whole("backoffLimit") != 0 for job in jobs)
        remark = "at the first failure; a Job tries its pods again until backoffLimit" if tries else ""
        _add(rule, {"reasons": _ANY_FAILURE, "action": action}, draft, remark)
    else:
        rule.refused("only BackoffLimitExceeded and PodFailurePolicy can be converted; set spec.failurePolicy.rules")


def _by_pod_rules(rule: Field, action: str, jobs: Sequence[Field], draft: Draft) -> None:
    """Answers a JobSet's rule about Jobs that failed because of their podFailurePolicy."""
    final = [rule for job in jobs for rule in _pod_rules(job) if rule.text("action") == "FailJob"]
    codes = sorted({code for each in final for code in _codes(each) or []})
    disruptions = [each for each in final if _is_disruption(each)]
    if action == "Ignore":
        for each in disruptions:
            each.dropped(_DISRUPTION)
    if codes:
        _add(rule, {"exitCodes": codes, "action": action}, draft)
        for each in filter(_codes, final):
            each.became(_last(draft))
    elif not final:
        rule.dropped("no podFailurePolicy of the workers has a FailJob rule, so it never applies")
    elif action == "Ignore" and len(disruptions) == len(final):
        rule.dropped(_DISRUPTION)
    elif disruptions:
        rule.refused(f"{_DISRUPTION}; no rule can change that")
    else:
        rule.refused("the podFailurePolicy's rules that it depends on can't be converted; set spec.failurePolicy.rules")


def _pod_rules(job: Field) -> list[Field]:
    return job.get("podFailurePolicy", "rules").items


def _is_disruption(rule: Field) -> bool:
    """Returns whether a Job's rule applies to pods that the cluster removed."""
    conditions = rule.get("onPodConditions").items
    return bool(conditions) and all(each.text("type") == "DisruptionTarget" for each in conditions)


def _codes(rule: Field) -> list[int] | None:
    """Returns the exit codes in a Job's rule, or None if the rule isn't a list of codes from 1 to 255."""
    listed = rule.listed("onExitCodes", "values")
    values = [code for code in listed if isinstance(code, int) and 1 <= code <= 255]
    return values if values == listed != [] and rule.text("onExitCodes", "operator") == "In" else None


def _add(field: Field, rule: dict[str, Any], draft: Draft, remark: str = "") -> None:
    draft.set((*_RULES, len(draft.at(_RULES) or [])), rule)
    field.became(_last(draft), remark=remark)


def _last(draft: Draft) -> Target:
    return Target((*_RULES, len(draft.at(_RULES)) - 1))

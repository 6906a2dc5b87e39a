"""Pods that the API server refuses: Pod Security, policies, webhooks, a missing service account, a LimitRange."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from trainmaster.client.diagnosis.finding import Finding, Step
from trainmaster.client.diagnosis.refused_pods import refused
from trainmaster.client.diagnosis.situation import Situation

_PolicyFinding = Callable[[re.Match[str], Situation], Finding]


def refusal_findings(situation: Situation) -> Iterator[Finding]:
    """Yields who refuses the pods, and for what."""
    messages = list(refused(situation))
    for message in messages:
        for pattern, explain in _RULES:
            found = pattern.search(message)
            if found is not None:
                finding = explain(found, situation)
                yield Finding(finding.cause, finding.clause, (f"the API server: {message}",), finding.steps)
                return
    if situation.is_starting and situation.shown_reason == "Refused" and messages:
        clause = f"the API server refuses what it needs: {_short(messages[0])}"
        yield Finding("Refused", clause, (f"the API server: {messages[0]}",), (_sets(situation),))


def _pod_security(found: re.Match[str], situation: Situation) -> Finding:
    namespace = situation.job.namespace
    clause = f"the namespace's Pod Security standard ({found[1]}) doesn't allow its pods: {_short(found[2])}"
    steps = (
        Step("set what it asks for in spec.podTemplate (docs/pods.md), or run in a namespace of another level"),
        Step("the namespace's level", f"kubectl get namespace {namespace} --show-labels"),
    )
    return Finding("Refused", clause, (), steps)


def _policy(found: re.Match[str], situation: Situation) -> Finding:
    clause = f"the cluster's policy {found[1]} refuses its pods: {_short(found[2])}"
    return Finding("Refused", clause, (), (Step("change what it names, or ask who owns the policy"), _sets(situation)))


def _webhook(found: re.Match[str], situation: Situation) -> Finding:
    clause = f"the admission webhook {found[1]} refuses its pods: {_short(found[2])}"
    return Finding("Refused", clause, (), (Step("change what it names, or ask who owns the policy"), _sets(situation)))


def _webhook_down(found: re.Match[str], situation: Situation) -> Finding:
    clause = f"the admission webhook {found[1]} doesn't answer, so nobody can make pods: {_short(found[2])}"
    look = Step("which webhooks there are", "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations")
    return Finding("WebhookDown", clause, (), (Step("tell who runs the webhook; the job goes on by itself then"), look))


def _account(found: re.Match[str], situation: Situation) -> Finding:
    clause = f"the service account {found[1]} isn't there, in the job's namespace"
    return Finding(
        "ServiceAccountMissing",
        clause,
        (),
        (Step("make it", f"kubectl create serviceaccount {found[1]} {situation.where}"),),
    )


def _priority(found: re.Match[str], situation: Situation) -> Finding:
    clause = f"there is no PriorityClass {found[1]}"
    return Finding("PriorityClassMissing", clause, (), (Step("which there are", "kubectl get priorityclasses"),))


def _limit(found: re.Match[str], situation: Situation) -> Finding:
    clause = f"a LimitRange of the namespace doesn't allow it: {_short(found[1])}"
    return Finding("Refused", clause, (), (Step("the limits", f"kubectl describe limitrange {situation.where}"),))


# In the API server's words; the most specific first.
_RULES: tuple[tuple[re.Pattern[str], _PolicyFinding], ...] = (
    (re.compile(r'violates PodSecurity "([^"]+)": (.+)', re.DOTALL), _pod_security),
    (re.compile(r"ValidatingAdmissionPolicy '([^']+)'.*?denied request: (.+)", re.DOTALL), _policy),
    (re.compile(r'admission webhook "([^"]+)" denied the request:? ?(.+)', re.DOTALL), _webhook),
    (re.compile(r'failed calling webhook "([^"]+)": (.+)', re.DOTALL), _webhook_down),
    (re.compile(r'serviceaccount "([^"]+)" not found'), _account),
    (re.compile(r"no PriorityClass with name (\S+) was found"), _priority),
    (re.compile(r"is forbidden: \[?((?:maximum|minimum) \S+ usage per .+)", re.DOTALL), _limit),
)


def _short(text: str) -> str:
    """Returns a policy's words in one line, without the last period."""
    return " ".join(text.split()).rstrip(".; ")[:400]


def _sets(situation: Situation) -> Step:
    return Step("the refusals", f"kubectl events {situation.where} --types=Warning")

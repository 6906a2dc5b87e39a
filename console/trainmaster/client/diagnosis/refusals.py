"""Explains why a job has no pods: a user holds it, or the operator or the API server refuses it.

The patterns match messages about quotas (plugin/pkg/admission/resourcequota), Pod Security and admission.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainmaster.client.diagnosis.capacity import amount_of, resource_noun, shown
from trainmaster.client.diagnosis.situation import Finding, Situation, Step
from trainmaster.client.objects import at, joined, name_of, short, text
from trainmaster.client.view import plural

_POLICY = "change what it names, or ask the policy's owner"
_EVENTS = ("the refusals", "kubectl events {where} --types=Warning")
# Each rule is a message's pattern, the cause, the clause ({0} and {1} are the pattern's groups), the remedy, and a
# command's description with the command.
_RULES: tuple[tuple[str, str, str, str, tuple[str, str]], ...] = (
    (r'violates PodSecurity "([^"]+)": (.+)', "Refused",
     "the namespace's Pod Security standard ({0}) doesn't allow its pods: {1}",
     "set what it asks for in spec.podTemplate (docs/pods.md), or use a namespace of another level",
     ("the namespace's level", "kubectl get namespace {namespace} --show-labels")),
    (r"ValidatingAdmissionPolicy '([^']+)'.*?denied request: (.+)", "Refused",
     "the cluster's policy {0} refuses its pods: {1}", _POLICY, _EVENTS),
    (r'admission webhook "([^"]+)" denied the request:? ?(.+)', "Refused",
     "the admission webhook {0} refuses its pods: {1}", _POLICY, _EVENTS),
    (r'failed calling webhook "([^"]+)": (.+)', "WebhookDown",
     "the admission webhook {0} doesn't answer, so nobody can create pods: {1}",
     "ask the webhook's administrator; the job continues by itself afterwards",
     ("the webhooks", "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations")),
    (r'serviceaccount "([^"]+)" not found', "ServiceAccountMissing",
     "the service account {0} doesn't exist in the job's namespace", "",
     ("create it", "kubectl create serviceaccount {0} {where}")),
    (r"no PriorityClass with name (\S+) was found", "PriorityClassMissing",
     "there is no PriorityClass {0}", "", ("the existing ones", "kubectl get priorityclasses")),
    (r"is forbidden: \[?((?:maximum|minimum) \S+ usage per .+)", "Refused",
     "a LimitRange of the namespace doesn't allow it: {0}", "",
     ("the limits", "kubectl describe limitrange {where}")),
)  # fmt: skip
_EXCEEDED = re.compile(r"exceeded quota: ([^,]+), requested: (\S+), used: (\S+), limited: (\S+)")
_UNSPECIFIED = re.compile(r"failed quota: ([^:]+): must specify (.+?) for: ([^;\n]+)")
_FIELDS = {"cpu": "spec.resources.cpu", "memory": "spec.resources.memory", "nvidia.com/gpu": "spec.resources.gpus"}
# Finalizers of Kubernetes' garbage collector.
_COLLECTING = ("foregroundDeletion", "orphan")


def held_findings(situation: Situation) -> Iterator[Finding]:
    """Yields the causes that precede all others: deletion, suspension, an invalid spec."""
    job = situation.job
    message = situation.shown_message.rstrip(".")
    deleted = text(job.raw, "metadata", "deletionTimestamp")
    if deleted:
        yield _deleting(situation, deleted)
    suspended = situation.condition("Suspended")
    is_held = suspended is not None and (suspended.status, suspended.reason) == ("True", "Suspended")
    if ((job.to_be_suspended and not job.finished) or is_held) and job.phase != "Suspending":
        resume = Step("resume it", f"kubectl dtj resume {job.name} {situation.where}")
        yield Finding("Suspended", "a user has suspended it (spec.runPolicy.suspend is true)", (), (resume,))
    if situation.view.end_reason == "InvalidSpec":
        again = Step(
            "correct the file (trainmaster validate FILE checks it), delete the job and apply it again",
            f"kubectl delete dtj {job.name} {situation.where}",
        )
        yield Finding("InvalidSpec", f"its spec is invalid: {message}", (), (again,))
    if situation.shown_reason == "NameTaken":
        clause = f"an object of another owner has a name that it needs: {message}"
        yield Finding("NameTaken", clause, (), (Step("rename the job, or delete that object"),))
    accepted = situation.condition("Accepted")
    if accepted is not None and accepted.status == "False" and situation.view.end_reason != "InvalidSpec":
        cause = "Unreadable" if accepted.reason == "Unreadable" else "InvalidSpec"
        yield Finding(cause, f"the operator doesn't accept its present spec: {accepted.message.rstrip('.')}")


def _deleting(situation: Situation, deleted: str) -> Finding:
    job = situation.job
    finalizers = [str(one) for one in at(job.raw, "metadata", "finalizers") or ()]
    others = [one for one in finalizers if one not in _COLLECTING]
    evidence = [f"deleted at {deleted}, finalizers: {joined(finalizers) or 'none'}"]
    if others:
        clause = f"it is being deleted, and waits for the owner of the finalizer {joined(others)}"
        step = Step("ask the owner; remove it only if nobody will", f"kubectl edit dtj {job.name} {situation.where}")
    else:
        pods = [name_of(pod) for pod in situation.pods]
        these = "pod" if len(pods) == 1 else "pods"
        evidence += [f"pod {name} still exists" for name in pods[:5]]
        clause = "it is being deleted" + (f", and waits for its {these} {joined(pods)}" if pods else "")
        look = f"kubectl get pods {situation.where} -l trainmaster.dev/job-name={job.name} -o wide"
        step = Step("its pods and their nodes", look)
    return Finding("Deleting", clause, tuple(evidence), (step,))


def _refused(situation: Situation) -> Iterator[str]:
    """Yields the API server's refusals of the job's objects: the operator's message, then events, newest first."""
    if not situation.is_starting:
        return
    is_shown = situation.shown_reason in ("QuotaExceeded", "Refused")
    if is_shown and situation.shown_message:
        yield situation.shown_message
    if is_shown or not situation.pods:
        events = situation.events_about("StatefulSet")
        yield from (text(event, "message") for event in events if event.get("reason") == "FailedCreate")


def quota_findings(situation: Situation) -> Iterator[Finding]:
    """Yields a finding on a ResourceQuota that is exhausted or requires a request or limit that the pods lack."""
    look = Step("all quotas and their use", f"kubectl describe resourcequota {situation.where}")
    for message in _refused(situation):
        evidence = (f"the API server: {message}",)
        if found := _EXCEEDED.search(message):
            asked, used, limited = (_amounts(part) for part in found.groups()[1:])
            over = [name for name in asked if name in limited and _never_fits(situation, asked[name], limited[name])]
            if over:
                name, workers = over[0], situation.job.status.workers.desired
                whole = shown(workers * amount_of(asked[name]), _plain(name))
                clause = (
                    f"the quota {found[1]} allows {limited[name]} {_noun(name, limited[name])}, and the job's "
                    f"{plural(workers, 'worker')} need {whole}: it never fits"
                )
                less = Step("use fewer or smaller workers, or ask for a larger quota; waiting can't help")
                yield Finding("QuotaExceeded", clause, evidence, (less, look))
                return
            needs = [
                f"{asked[name]} more {_noun(name, asked[name])}, and {used.get(name, '0')} of {limited[name]} "
                f"{'is' if used.get(name) == '1' else 'are'} in use"
                for name in asked
                if name in limited
            ]
            clause = f"the quota {found[1]} is exhausted: it needs {joined(needs)}"
            wait = Step("wait until other jobs of the namespace have ended, ask for less, or for a larger quota")
            yield Finding("QuotaExceeded", clause, evidence, (wait, look))
            return
        if found := _UNSPECIFIED.search(message):
            lacking = sorted({part.partition(".")[2] or part for part in re.split(r"[,;\s]+", found[2]) if part})
            fields = [_FIELDS.get(name, f"{name} in spec.podTemplate") for name in lacking]
            clause = f"the quota {found[1]} requires {found[2]} of every container, and {found[3]} has none"
            given = Step(f"set {joined(fields)}, and apply the job again")
            yield Finding("QuotaUnspecified", clause, evidence, (given, look))
            return


def _never_fits(situation: Situation, asked: str, limited: str) -> bool:
    """Returns whether all workers together exceed a quota even if nobody else uses any of it."""
    workers = 1 if at(situation.job.raw, "spec", "elastic") else max(situation.job.status.workers.desired, 1)
    return workers * amount_of(asked) > amount_of(limited)


def _plain(name: str) -> str:
    return name.removeprefix("requests.").removeprefix("limits.")


def _amounts(text: str) -> dict[str, str]:
    return {name: amount for name, _, amount in (part.partition("=") for part in text.split(","))}


def _noun(name: str, amount: str) -> str:
    plain = _plain(name)
    kind = "limits of " if name.startswith("limits.") else ""
    if plain == "pods":
        return kind + ("pod" if amount == "1" else "pods")
    return kind + resource_noun(plain, amount)


def refusal_findings(situation: Situation) -> Iterator[Finding]:
    """Yields a finding on the admission rule that refuses the pods, with the rule's reason."""
    messages = list(_refused(situation))
    words = {"where": situation.where, "namespace": situation.job.namespace}
    for message in messages:
        for pattern, cause, clause, remedy, (what, command) in _RULES:
            found = re.search(pattern, message, re.DOTALL)
            if found is None:
                continue
            groups = [short(group, 400) for group in found.groups()]
            look = Step(what, command.format(*groups, **words))
            steps = (Step(remedy), look) if remedy else (look,)
            yield Finding(cause, clause.format(*groups), (f"the API server: {message}",), steps)
            return
    if situation.is_starting and situation.shown_reason == "Refused" and messages:
        clause = f"the API server refuses an object that it needs: {short(messages[0], 400)}"
        look = Step(_EVENTS[0], _EVENTS[1].format(**words))
        yield Finding("Refused", clause, (f"the API server: {messages[0]}",), (look,))

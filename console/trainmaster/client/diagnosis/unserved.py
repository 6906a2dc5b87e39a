"""Jobs that nobody works on: being deleted, suspended by a user, without an operator, or refused by it at once."""

from __future__ import annotations

from collections.abc import Iterator

from trainmaster.client.diagnosis.finding import Finding, Step
from trainmaster.client.diagnosis.objects import Object, at, items, joined, name_of, text
from trainmaster.client.diagnosis.situation import Situation
from trainmaster.client.diagnosis.slowness import steps_done

_FOREGROUND = ("foregroundDeletion", "orphan")


def unserved_findings(situation: Situation) -> Iterator[Finding]:
    """Yields what is so before anything of the job can be wrong."""
    job = situation.job
    deleted = text(job.raw, "metadata", "deletionTimestamp")
    if deleted:
        yield _deleting(situation, deleted)
    if job.status.phase is None:
        yield _unseen(situation)
    if job.phase == "Succeeded":
        yield Finding("Succeeded", f"its ranks ended with 0{steps_done(job)}; there is nothing to do")
    suspended = next(
        (each for each in job.status.conditions if each.type == "Suspended" and each.status == "True"), None
    )
    if (job.to_be_suspended and not job.finished) or (suspended is not None and suspended.reason == "Suspended"):
        clause = "a user has suspended it (runPolicy.suspend is true)"
        yield Finding(
            "Suspended", clause, (), (Step("let it go on", f"kubectl dtj resume {job.name} {situation.where}"),)
        )
    if situation.failed_reason == "InvalidSpec":
        clause = f"its spec can't be run: {situation.shown_message.rstrip('.')}"
        yield Finding("InvalidSpec", clause, (), (_again(situation),))
    if situation.shown_reason == "NameTaken":
        clause = f"a name that it needs belongs to somebody else's object: {situation.shown_message.rstrip('.')}"
        yield Finding("NameTaken", clause, (), (Step("rename the job, or delete that object"),))
    accepted = next(
        (each for each in job.status.conditions if each.type == "Accepted" and each.status == "False"), None
    )
    if accepted is not None and situation.failed_reason != "InvalidSpec":
        cause = "Unreadable" if accepted.reason == "Unreadable" else "InvalidSpec"
        yield Finding(cause, f"the operator doesn't take its spec as it is now: {accepted.message.rstrip('.')}")


def _deleting(situation: Situation, deleted: str) -> Finding:
    job = situation.job
    finalizers = [str(one) for one in at(job.raw, "metadata", "finalizers") or ()]
    others = [one for one in finalizers if one not in _FOREGROUND]
    evidence = [f"deleted at {deleted}, finalizers: {joined(finalizers) or 'none'}"]
    if others:
        clause = f"it is being deleted, and waits for whoever set the finalizer {joined(others)}"
        step = Step("ask who set it; only if nobody will remove it", f"kubectl edit dtj {job.name} {situation.where}")
        return Finding("Deleting", clause, tuple(evidence), (step,))
    pods = [name_of(pod) for pod in situation.pods]
    evidence += [f"pod {name} is still there" for name in pods[:5]]
    waits = f", and waits for its pods {joined(pods)}" if pods else ""
    pods_of = f"kubectl get pods {situation.where} -l trainmaster.dev/job-name={job.name} -o wide"
    return Finding(
        "Deleting", f"it is being deleted{waits}", tuple(evidence), (Step("its pods and their nodes", pods_of),)
    )


def _unseen(situation: Situation) -> Finding:
    namespace = situation.job.namespace
    get = Step("the operators of the cluster", "kubectl get deployments -A -l app.kubernetes.io/name=trainmaster")
    if situation.operators is None:
        clause = "no operator has accepted it, and whether one runs couldn't be read"
        return Finding("NoOperator", clause, (), (get,), is_certain=False)
    if not situation.operators:
        clause = "no operator has accepted it: none is installed in this cluster as a Deployment"
        install = Step("install one (README.md), or start one for this namespace: trainmaster operator run")
        return Finding("NoOperator", clause, (), (install, get))
    serving = [one for one in situation.operators if _serves(one, namespace)]
    if not serving:
        served = sorted({name for one in situation.operators for name in _namespaces(one)})
        clause = f"the operator serves namespace {joined(served)}, and the job is in {namespace}"
        step = Step(
            f"add {namespace} to `namespaces` in the chart's values, or make the job in a namespace that is served"
        )
        return Finding("NoOperator", clause, (), (step, get))
    one = serving[0]
    where = f"{text(one, 'metadata', 'namespace')}/{name_of(one)}"
    logs = Step("its log", f"kubectl logs -n {text(one, 'metadata', 'namespace')} deployment/{name_of(one)} --tail 50")
    if not at(one, "status", "readyReplicas"):
        describe = (
            f"kubectl describe pods -n {text(one, 'metadata', 'namespace')} -l app.kubernetes.io/name=trainmaster"
        )
        clause = f"the operator {where} has no pod that is ready"
        return Finding("NoOperator", clause, (), (Step("why its pod isn't ready", describe), logs))
    clause = f"the operator {where} runs and hasn't accepted it yet; that takes a second, or it is in trouble"
    return Finding("NoOperator", clause, (), (logs,), is_certain=False)


def _arguments(operator: Object) -> list[str]:
    found: list[str] = []
    for container in items(operator, "spec", "template", "spec", "containers"):
        found += [str(one) for field in ("command", "args") for one in container.get(field) or ()]
    return found


def _namespaces(operator: Object) -> list[str]:
    return [one.removeprefix("--namespace=") for one in _arguments(operator) if one.startswith("--namespace=")]


def _serves(operator: Object, namespace: str) -> bool:
    return namespace in _namespaces(operator) or not _namespaces(operator)


def _again(situation: Situation) -> Step:
    return Step(
        "correct the file (trainmaster validate FILE checks it), delete the job and apply it again",
        f"kubectl delete dtj {situation.name} {situation.where}",
    )

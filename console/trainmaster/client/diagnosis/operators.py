"""Explains why no operator serves a job: none is installed, its pod doesn't run, it has stopped, or serves elsewhere.

An operator shows that it runs in two places: its Deployment has ready pods, and the leader renews its Lease every few
seconds. An operator that runs as a process has only a Lease.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainmaster.client.diagnosis.situation import Finding, Situation, Step
from trainmaster.client.objects import Object, at, condition, containers, items, joined, name_of, short, text
from trainmaster_operator.api import times
from trainmaster_operator.wire.names import LEASE_NAME
from trainmaster_operator.wire.values import number

# A Lease that is older than its duration by this many seconds isn't held. Clocks of different machines differ.
LEASE_SLACK_SECONDS = 45.0
_LABEL = "app.kubernetes.io/name=trainmaster"
_GET = Step("the cluster's operators", f"kubectl get deployments -A -l {_LABEL}")


def unseen_findings(situation: Situation) -> Iterator[Finding]:
    """Yields why no operator has accepted a new job."""
    if situation.job.status.phase is not None:
        return
    namespace = situation.job.namespace
    if situation.operators is None:
        clause = "no operator has accepted it, and whether one runs couldn't be read"
        yield Finding("NoOperator", clause, (), (_GET,), is_certain=False)
        return
    serving = [one for one in situation.operators if not _namespaces(one) or namespace in _namespaces(one)]
    if not situation.operators:
        yield _process(situation)
    elif not serving:
        names = sorted({name for one in situation.operators for name in _namespaces(one)})
        clause = f"the operator serves namespace {joined(names)}, and the job is in {namespace}"
        add = Step(f"add {namespace} to `namespaces` in the chart's values, or create the job in a served namespace")
        yield Finding("NoOperator", clause, (), (add, _GET))
    elif not any(at(one, "status", "readyReplicas") for one in serving):
        clause, evidence, steps = _unready(situation, serving[0])
        yield Finding("NoOperator", f"no operator has accepted it: {clause}", evidence, steps)
    else:
        ready = next(one for one in serving if at(one, "status", "readyReplicas"))
        clause = f"the operator {_place(ready)} runs and hasn't accepted it yet; this should take a second"
        yield Finding("NoOperator", clause, (), (_logs(ready),), is_certain=False)


def operator_down_since(situation: Situation) -> tuple[str, tuple[str, ...], tuple[Step, ...]] | None:
    """Returns since when (if known) no operator has served the job, with evidence and steps. None if one may run."""
    namespace = situation.job.namespace
    found = situation.operators or ()
    serving = [one for one in found if not _namespaces(one) or namespace in _namespaces(one)]
    if any(at(one, "status", "readyReplicas") for one in serving):
        # A ready pod answers its probes. If it can't renew its Lease, it ends.
        return None
    stale = _stale(situation)
    if serving:
        clause, evidence, steps = _unready(situation, serving[0])
        available = condition(serving[0], "Available")
        since = stale or (text(available, "lastTransitionTime") if available.get("status") == "False" else "")
        return since, (clause, *evidence), steps
    if not stale:
        return None
    evidence = (f"the Lease {LEASE_NAME} was last renewed at {stale}",)
    return stale, evidence, (Step("start the operator again"), _GET)


def _process(situation: Situation) -> Finding:
    """Returns the finding on a cluster without a Deployment of an operator: perhaps one runs as a process."""
    install = Step("install one (README.md), or start one for this namespace: trainmaster operator run")
    if situation.lease and not _is_stale(situation, situation.lease):
        holder = text(situation.lease, "spec", "holderIdentity")
        clause = f"the operator {holder} runs and hasn't accepted it yet; this should take a second"
        return Finding("NoOperator", clause, (), (Step("look at that process's output"), _GET), is_certain=False)
    if stale := _stale(situation):
        seconds = times.since(situation.now.timestamp(), stale)
        clause = f"no operator has accepted it: the last one stopped {times.duration(seconds)} ago"
        return Finding("NoOperator", clause, (f"its Lease was last renewed at {stale}",), (install, _GET))
    clause = "no operator has accepted it: none is installed in this cluster as a Deployment"
    return Finding("NoOperator", clause, (), (install, _GET))


def _unready(situation: Situation, operator: Object) -> tuple[str, tuple[str, ...], tuple[Step, ...]]:
    """Returns why an operator has no ready pod, with evidence and steps."""
    namespace, place = text(operator, "metadata", "namespace"), _place(operator)
    describe = Step("its pods", f"kubectl describe pods -n {namespace} -l {_LABEL}")
    if at(operator, "spec", "replicas") == 0:
        start = Step("start it", f"kubectl scale deployment {name_of(operator)} -n {namespace} --replicas=1")
        return f"the operator {place} is scaled to 0 replicas", (), (start,)
    pods = [pod for pod in situation.operator_pods if text(pod, "metadata", "namespace") in ("", namespace)]
    for pod in pods:
        why, step = _pod_problem(pod, namespace)
        if why:
            return f"the operator {place} has no ready pod: {why}", (), (*step, describe)
    failure = condition(operator, "ReplicaFailure")
    if failure.get("status") == "True":
        why = short(text(failure, "message"))
        return f"the operator {place} has no pod: {why}", (), (describe,)
    return f"the operator {place} has no ready pod", (), (describe, _logs(operator))


def _pod_problem(pod: Object, namespace: str) -> tuple[str, tuple[Step, ...]]:
    name = name_of(pod)
    for _, status in containers(pod):
        reason, message = (text(status, "state", "waiting", field) for field in ("reason", "message"))
        ended = at(status, "lastState", "terminated") or at(status, "state", "terminated")
        code, last = at(ended, "exitCode"), text(ended, "message").strip()
        if reason == "CrashLoopBackOff" or (ended and code != 0):
            how = f" (exit code {code})" if isinstance(code, int) else ""
            why = text(ended, "reason")
            how = " (OOMKilled: it needs a larger memory limit)" if why == "OOMKilled" else how
            said = f": {short(last.splitlines()[-1])}" if last else ""
            log = Step("why it ends", f"kubectl logs {name} -n {namespace} --previous --tail 50")
            return f"its pod {name} ends again and again{how}{said}", (log,)
        if reason and reason not in ("ContainerCreating", "PodInitializing"):
            return f"its pod {name} waits: {reason}" + (f": {short(message)}" if message else ""), ()
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"its pod {name} has no node: {short(text(scheduled, 'message'))}", ()
    return "", ()


def _stale(situation: Situation) -> str:
    """Returns when the leader's Lease was last renewed if that is too long ago. Else an empty text.

    Only the operator writes the status, so a newer time there is a sign of life too.
    """
    lease = situation.lease
    if not lease or not _is_stale(situation, lease):
        return ""
    renewed, status = text(lease, "spec", "renewTime"), situation.job.status
    progress = status.progress.reported_at if status.progress is not None else None
    spent = status.time_spent.until if status.time_spent is not None else None
    signs = [one for one in (renewed, progress, spent) if one and times.to_seconds(one) is not None]
    newest = max(signs, key=lambda one: times.to_seconds(one) or 0.0)
    age = times.since(situation.now.timestamp(), newest)
    return newest if age > LEASE_SLACK_SECONDS else ""


def _is_stale(situation: Situation, lease: Object) -> bool:
    seconds = number(at(lease, "spec", "leaseDurationSeconds")) or 0.0
    age = times.since(situation.now.timestamp(), text(lease, "spec", "renewTime"))
    return age > seconds + LEASE_SLACK_SECONDS


def _place(operator: Object) -> str:
    return f"{text(operator, 'metadata', 'namespace')}/{name_of(operator)}"


def _logs(operator: Object) -> Step:
    namespace = text(operator, "metadata", "namespace")
    return Step("its log", f"kubectl logs -n {namespace} deployment/{name_of(operator)} --tail 50")


def _namespaces(operator: Object) -> list[str]:
    """Returns the namespaces in an operator's options. An empty list means all namespaces."""
    options = [
        str(one)
        for each in items(operator, "spec", "template", "spec", "containers")
        for field in ("command", "args")
        for one in each.get(field) or ()
    ]
    return [one.removeprefix("--namespace=") for one in options if one.startswith("--namespace=")]

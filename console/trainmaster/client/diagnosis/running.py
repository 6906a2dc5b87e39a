"""Explains whether a training job lacks ranks, is slow or is healthy.

A job counts as slow if status.timeSpent shows a large loss, or if one rank is much slower than the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from trainmaster.client.diagnosis.situation import Finding, Situation, Step
from trainmaster.client.job import worker_index
from trainmaster.client.objects import at, condition, items, name_of, text
from trainmaster.client.view import percent, plural
from trainmaster_operator.api.v1alpha1 import TIME_CATEGORIES
from trainmaster_operator.wire.values import whole

# A loss is reported only if its share is at least this large, and if the job's total time is at least this long (s).
LARGE_SHARE, FEW_SECONDS = 0.2, 20.0
# A rank that is slower than the median by this factor delays the others. Equal ranks differ by a few percent.
STRAGGLES = 1.3
# Each category's cause, activity and remedy.
_LOSSES = {
    "data": ("DataWait", "waiting for data", "use more data loader workers, more CPU, or data on a faster volume"),
    "checkpoint": ("CheckpointStall", "checkpoints", "save them asynchronously, less often, or to a faster volume"),
    "recompute": ("Recompute", "repeating steps after restarts", "find out why it restarts, and save more often"),
    "stall": ("Stall", "undetected hangs", "look at the evidence; lower spec.failurePolicy.hang.progressSeconds"),
    "evaluate": ("Evaluation", "evaluation", "evaluate less often, or on fewer samples"),
    "restart": ("Restarts", "restarts", "find out why it restarts"),
    "load": ("SlowStart", "loading model and data before the first step", "keep model and data on a fast volume"),
    "rendezvous": ("SlowStart", "waiting until all ranks were up", "look for workers that start later than others"),
    "pull": ("SlowStart", "pulling images and mounting volumes", "use a smaller image, or pull it onto nodes before"),
    "schedule": ("SlowStart", "waiting for nodes", "ask for what is free more often, or use a queue"),
}
# Categories that occur once in each attempt, before its first step.
_ONCE = ("load", "rendezvous", "pull", "schedule")


def continuing_findings(situation: Situation) -> Iterator[Finding]:
    """Yields a finding on what the missing ranks wait for. Rules about these ranks' pods are applied earlier."""
    if situation.view.training_with:
        failures = situation.job.status.failures[:1]
        evidence = tuple(f"attempt {one.attempt} ended: {one.reason}: {one.message[:200]}" for one in failures)
        look = Step("the output of the absent workers", f"kubectl dtj logs {situation.job.name} {situation.where}")
        yield Finding("Continued", situation.view.rest.rstrip(".") or "the others are starting", evidence, (look,))


def progress_findings(situation: Situation) -> Iterator[Finding]:
    """Yields why a running job is slow. In other phases, yields the operator's message."""
    if situation.job.phase == "Running":
        yield from _straggler(situation)
        yield from _losses(situation)
        yield from _missing_spares(situation)
        yield _well(situation)
        return
    message = situation.shown_message.rstrip(".") or f"nothing more is known ({situation.shown_reason or 'Unknown'})"
    yield Finding("Unknown", message, (), (_status(situation),), is_certain=False)


def _straggler(situation: Situation) -> Iterator[Finding]:
    """Yields a finding on a rank whose own time per step is much longer than the others'."""
    measured = {one.rank: (one.own_seconds, one) for one in situation.ranks if one.own_seconds is not None}
    if len(measured) < 2:
        return
    ordered = sorted(measured.values(), key=lambda each: each[0], reverse=True)
    seconds, slowest = ordered[0]
    typical = median(each for each, _ in ordered[1:])
    if typical <= 0 or seconds < STRAGGLES * typical:
        return
    pod = next((one for one in situation.pods if worker_index(one) == slowest.worker), {})
    node = text(pod, "spec", "nodeName")
    where = f" on node {node}" if node else f" of worker {slowest.worker}"
    times = f"{seconds:.3g} s for its part of a step, the others {typical:.3g} s"
    clause = f"rank {slowest.rank}{where} needs {times}, and all wait for it"
    evidence = tuple(f"rank {one.rank}, worker {one.worker}: {each:.3g} s per step" for each, one in ordered[:8])
    move = f"kubectl cordon {node} && kubectl delete pod {name_of(pod)} {situation.where}"
    steps = (
        Step("check that node: clocks, temperature, other pods, a throttled CPU", f"kubectl describe node {node}"),
        Step("move the pod to another node", move),
    )
    yield Finding("Straggler", clause, evidence, steps if node else (_status(situation),))


def _losses(situation: Situation) -> Iterator[Finding]:
    """Yields a finding on the largest share of time that wasn't spent on new steps, if this share is large."""
    status = situation.job.status
    if status.time_spent is None:
        return
    own = [name for name in TIME_CATEGORIES if name not in ("suspended", "queue", "unobserved")]
    amounts = {name: getattr(status.time_spent, name) or 0.0 for name in own}
    total = sum(amounts.values())
    ignored = () if amounts["productive"] > 0 else _ONCE
    losses = {name: seconds for name, seconds in amounts.items() if name in _LOSSES and name not in ignored}
    name = max(losses, key=lambda each: losses[each], default="")
    if total < FEW_SECONDS or not name or losses[name] / total < LARGE_SHARE:
        return
    cause, into, remedy = _LOSSES[name]
    restarted = name in ("recompute", "restart")
    times = f" ({plural(status.restarts, 'restart')})" if restarted else ""
    clause = f"it trains, and {percent(losses[name] / total)} of its time goes into {into}{times}"
    ordered = sorted(((seconds, each) for each, seconds in amounts.items() if seconds), reverse=True)
    evidence = [f"its time: {', '.join(f'{each} {percent(seconds / total)}' for seconds, each in ordered[:6])}"]
    if situation.view.progress:
        evidence.append(f"it is at {situation.view.progress}")
    failures = status.failures[:3] if restarted else ()
    evidence += [f"attempt {one.attempt}: {one.reason}: {one.message[:200]}" for one in failures]
    yield Finding(cause, clause, tuple(evidence), (Step(remedy), _status(situation)))


def _missing_spares(situation: Situation) -> Iterator[Finding]:
    """Yields a finding on a job that trains, but has fewer spares than it asks for."""
    spec, view = situation.job.raw.get("spec"), situation.view
    wanted = sum(whole(at(each, "spares")) or 0 for each in (spec, *items(spec, "workerGroups")))
    missing = wanted - (view.spares or 0)
    if missing <= 0 or view.spares is None:
        return
    pods = [pod for pod in situation.pods if condition(pod, "PodScheduled").get("status") == "False"]
    message = text(condition(pods[0], "PodScheduled"), "message").partition(" preemption:")[0] if pods else ""
    why = f": pod {name_of(pods[0])} has no node: {message}" if pods else ""
    lacks = "1 spare isn't up" if missing == 1 else f"{missing} spares aren't up"
    trains = f"it trains ({view.progress})" if view.progress else "it trains"
    if pods:
        look = Step("the scheduler's messages", f"kubectl events --for pod/{name_of(pods[0])} {situation.where}")
    else:
        look = Step("its pods", f"kubectl get pods {situation.where} -l trainmaster.dev/job-name={situation.job.name}")
    yield Finding("SpareMissing", f"{trains}, but {lacks}{why}", (), (look,))


def _well(situation: Situation) -> Finding:
    view = situation.view
    running = f"{view.running} of {plural(view.desired, 'worker')} running"
    goodput = f"goodput {percent(view.goodput)}" if view.goodput is not None else ""
    progress = view.progress or "its script reports no steps, so its speed is unknown"
    return Finding("Healthy", f"normally ({progress})", tuple(filter(None, (running, goodput, view.rest))))


def _status(situation: Situation) -> Step:
    return Step("its status", f"kubectl dtj status {situation.job.name} {situation.where}")

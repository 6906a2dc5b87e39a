"""A job that runs: where its time goes (status.timeSpent), a rank that holds up the others, or all is well."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from trainmaster.client.diagnosis.finding import Finding, Step
from trainmaster.client.diagnosis.objects import name_of, plural, text
from trainmaster.client.diagnosis.situation import Situation
from trainmaster.client.job import TrainingJob, worker_index
from trainmaster.client.metrics import RankMetrics
from trainmaster.client.sentences import rest
from trainmaster_operator.api.v1alpha1 import TIME_CATEGORIES

# A share of the time that is worth a person's while, and seconds below which shares say nothing.
LARGE_SHARE, FEW_SECONDS = 0.2, 20.0
# A rank this much slower than the median holds up the others; ranks of one machine differ by a few percent.
STRAGGLES = 1.3
# Category: cause, what the time goes into, and what shortens it.
_LOSSES = {
    "data": ("DataWait", "waiting for data", "use more data loader workers, more CPU, or data on a faster volume"),
    "checkpoint": ("CheckpointStall", "checkpoints", "save them asynchronously, less often, or to a faster volume"),
    "recompute": ("Recompute", "doing steps again after restarts", "find out why it restarts, and save more often"),
    "stall": (
        "Stall",
        "hangs, until they were found",
        "look at the evidence; lower failurePolicy.hang.progressSeconds",
    ),
    "evaluate": ("Evaluation", "evaluation", "evaluate less often, or on fewer samples"),
    "restart": ("Restarts", "restarts", "find out why it restarts"),
    "load": ("SlowStart", "loading model and data before the first step", "keep model and data on a fast volume"),
    "rendezvous": ("SlowStart", "waiting until all ranks were up", "look for workers that start later than others"),
    "pull": ("SlowStart", "pulling images and mounting volumes", "use a smaller image, or have it on the nodes before"),
    "schedule": ("SlowStart", "waiting for nodes", "ask for what is free more often, or use a queue"),
}
_ONCE = ("load", "rendezvous", "pull", "schedule")


def progress_findings(situation: Situation) -> Iterator[Finding]:
    """Yields what makes a running job slow, and whatever there is to say of any other."""
    job = situation.job
    if job.phase == "Running":
        yield from _straggler(situation)
        yield from _losses(situation)
        yield _well(situation)
        return
    reason = situation.shown_reason or "Unknown"
    message = situation.shown_message.rstrip(".")
    yield Finding("Unknown", message or f"nothing more is known ({reason})", (), _looks(situation), is_certain=False)


def steps_done(job: TrainingJob) -> str:
    """Returns how far training is, as the end of a sentence."""
    progress = job.status.progress
    if progress is None or progress.step is None:
        return ""
    total = f"/{progress.total_steps}" if progress.total_steps else ""
    speed = f", {progress.samples_per_second:.4g} samples/s" if progress.samples_per_second else ""
    return f": step {progress.step}{total}{speed}"


def _losses(situation: Situation) -> Iterator[Finding]:
    """Yields the largest share of the time that didn't go into new steps, where it is large."""
    job = situation.job
    spent = job.status.time_spent
    if spent is None:
        return
    own = [name for name in TIME_CATEGORIES if name not in ("suspended", "queue", "unobserved")]
    amounts = {name: getattr(spent, name) or 0.0 for name in own}
    whole = sum(amounts.values())
    trains = amounts["productive"] > 0
    losses = {
        name: seconds for name, seconds in amounts.items() if name in _LOSSES and not (name in _ONCE and not trains)
    }
    if whole < FEW_SECONDS or not losses:
        return
    name = max(losses, key=lambda each: losses[each])
    share = losses[name] / whole
    if share < LARGE_SHARE:
        return
    cause, into, remedy = _LOSSES[name]
    times = f" ({plural(job.status.restarts, 'restart')})" if name in ("recompute", "restart") else ""
    clause = f"it trains, and {share:.0%} of its time goes into {into}{times}"
    ordered = sorted(((seconds, each) for each, seconds in amounts.items() if seconds), reverse=True)
    books = ", ".join(f"{each} {seconds / whole:.0%}" for seconds, each in ordered[:6])
    evidence = [f"where its time went: {books}"]
    if steps_done(job):
        evidence.append(f"it is at{steps_done(job)[1:]}")
    evidence += [
        f"attempt {one.attempt}: {one.reason}: {one.message[:200]}" for one in job.status.failures[:3] if times
    ]
    yield Finding(cause, clause, tuple(evidence), (Step(remedy), *_looks(situation)))


def _straggler(situation: Situation) -> Iterator[Finding]:
    """Yields the rank whose own time for a step is far above the others'."""
    seconds = {rank.rank: rank for rank in situation.ranks if rank.own_seconds is not None}
    if len(seconds) < 2:
        return
    slowest = max(seconds.values(), key=_own_seconds)
    typical = median(_own_seconds(rank) for rank in seconds.values() if rank is not slowest)
    if typical <= 0 or _own_seconds(slowest) < STRAGGLES * typical:
        return
    pod = next((one for one in situation.pods if worker_index(one) == slowest.worker), {})
    node = text(pod, "spec", "nodeName")
    where = f" on node {node}" if node else f" of worker {slowest.worker}"
    times = f"{_own_seconds(slowest):.3g} s for its part of a step, the others {typical:.3g} s"
    clause = f"rank {slowest.rank}{where} needs {times}, and all wait for it"
    shown = sorted(seconds.values(), key=_own_seconds, reverse=True)[:8]
    evidence = tuple(f"rank {rank.rank}, worker {rank.worker}: {_own_seconds(rank):.3g} s a step" for rank in shown)
    look = Step("look at that node: clocks, temperature, other pods, a throttled CPU", f"kubectl describe node {node}")
    move = Step(
        "have the pod made anew elsewhere",
        f"kubectl cordon {node} && kubectl delete pod {name_of(pod)} {situation.where}",
    )
    yield Finding("Straggler", clause, evidence, (look, move) if node else _looks(situation))


def _own_seconds(rank: RankMetrics) -> float:
    return rank.own_seconds or 0.0


def _well(situation: Situation) -> Finding:
    job = situation.job
    progress = job.status.progress
    done = steps_done(job)
    good = f"goodput {progress.goodput:.0%}" if progress is not None and progress.goodput is not None else ""
    running = f"{plural(job.status.workers.running, 'worker')} of {job.status.workers.desired} running"
    evidence = (running, good, rest(job))
    silent = "" if done else " (its script reports no steps, so how fast it is isn't known)"
    return Finding("Healthy", f"nothing is wrong{done}{silent}", tuple(filter(None, evidence)))


def _looks(situation: Situation) -> tuple[Step, ...]:
    return (Step("where it stands", f"kubectl dtj status {situation.name} {situation.where}"),)

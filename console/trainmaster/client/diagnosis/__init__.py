"""The diagnosis says why a job doesn't run, has failed, or is slow: one dominant cause, its evidence, what to do next.

Everything here is pure; `trainmaster.client.gathering` reads a situation from a cluster. In the order of reading:

- `situation`: the input of the rules (a job's raw objects, as far as readable) and their output (findings);
- the rules, in the order of a job's life: `refusals` (not served, or refused by the API server), `queueing` (Kueue,
  gangs), `scheduling` (pods without a node, with the scheduler's words and the nodes' `capacity`), `pods` (nodes,
  volumes, images, containers, ranks that don't come up), `failures` (what ended an attempt, with the `endings` of
  programs) and `running` (a job that trains: without some of its ranks, slowly, or well).

`diagnose` asks the rules in one order, because an early obstacle hides later ones: a job that nobody serves has no
other cause, a queued job has no pods, and pods that can't be created can't be scheduled. The first finding is the
cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trainmaster.client.diagnosis.failures import failure_findings
from trainmaster.client.diagnosis.pods import container_findings, image_findings, node_findings, volume_findings
from trainmaster.client.diagnosis.queueing import gang_findings, queue_findings
from trainmaster.client.diagnosis.refusals import quota_findings, refusal_findings, unserved_findings
from trainmaster.client.diagnosis.running import continuing_findings, progress_findings
from trainmaster.client.diagnosis.scheduling import scheduling_findings
from trainmaster.client.diagnosis.situation import Diagnosis, Finding, Situation, Step

__all__ = ["Diagnosis", "Finding", "Situation", "Step", "diagnose"]

_RULES: tuple[Callable[[Situation], Iterator[Finding]], ...] = (
    *(unserved_findings, queue_findings, quota_findings, refusal_findings, gang_findings, scheduling_findings),
    *(node_findings, volume_findings, image_findings, container_findings),
    *(continuing_findings, failure_findings, progress_findings),
)
# Limit of the findings listed beside the cause; the ordinary ones of a healthy job are left out.
MAX_OTHERS = 4
_ORDINARY = ("Healthy", "Starting", "Unknown")
_VERBS = {"Failed": "has failed", "Succeeded": "has succeeded"}


def diagnose(situation: Situation) -> Diagnosis:
    """Returns the reason for the job's state."""
    found: list[Finding] = []
    for rule in _RULES:
        found.extend(finding for finding in rule(situation) if finding.cause not in {each.cause for each in found})
    cause, *others = found
    job = situation.job
    beginning = f"{job.name} {_VERBS.get(job.phase, f'is {job.phase.lower()}')}"
    if members := situation.view.members(situation.now):
        beginning += f", {members}"
    return Diagnosis(
        namespace=job.namespace,
        name=job.name,
        phase=job.phase,
        cause=cause.cause,
        sentence=f"{beginning}{' ' if cause.cause == 'Healthy' else ': '}{cause.clause}.",
        evidence=cause.evidence,
        steps=cause.steps,
        is_certain=cause.is_certain,
        others=tuple(other.clause for other in others[:MAX_OTHERS] if other.cause not in _ORDINARY),
        unread=situation.unread,
    )

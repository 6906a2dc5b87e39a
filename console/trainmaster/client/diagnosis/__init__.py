"""The diagnosis explains why a job doesn't run, has failed or is slow: it names a main cause, evidence and next steps.

All functions here are pure; `trainmaster.client.gathering` reads a situation from a cluster. Read the modules in this
order:

- `situation`: the rules' input (the readable raw objects around a job) and output (findings); `advice` fits the steps
  of a finding to the job;
- the rules, in the order of a job's life: `operators` (jobs that no operator serves), `refusals` (jobs that are held or
  refused), `queueing` (Kueue, gangs), `scheduling` (pods without a node; uses `capacity` and `gangs`), `pods` (nodes,
  volumes, images, containers, ranks that don't start), `failures` (what ended an attempt; uses `endings`), `trouble`
  (running jobs that stall, crash again and again, or whose progress isn't known) and `running` (jobs that train without
  some of their ranks, slowly or well).

`diagnose` applies the rules in a fixed order, because an early obstacle hides later ones. For example, a queued job has
no pods, and pods that can't be created can't be scheduled. The first finding is the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trainmaster.client.diagnosis.advice import fitted
from trainmaster.client.diagnosis.failures import failure_findings
from trainmaster.client.diagnosis.operators import unseen_findings
from trainmaster.client.diagnosis.pods import (
    container_findings,
    image_findings,
    node_findings,
    stuck_findings,
    volume_findings,
)
from trainmaster.client.diagnosis.queueing import gang_findings, queue_findings
from trainmaster.client.diagnosis.refusals import held_findings, quota_findings, refusal_findings
from trainmaster.client.diagnosis.running import continuing_findings, progress_findings
from trainmaster.client.diagnosis.scheduling import scheduling_findings
from trainmaster.client.diagnosis.situation import Diagnosis, Finding, Situation, Step
from trainmaster.client.diagnosis.trouble import operator_findings, trouble_findings

__all__ = ["Diagnosis", "Finding", "Situation", "Step", "diagnose", "findings"]

_RULES: tuple[Callable[[Situation], Iterator[Finding]], ...] = (
    *(unseen_findings, held_findings, operator_findings),
    *(queue_findings, quota_findings, refusal_findings, gang_findings, scheduling_findings),
    *(node_findings, stuck_findings, volume_findings, image_findings, container_findings),
    *(trouble_findings, continuing_findings, failure_findings, progress_findings),
)
# Maximum number of findings listed beside the cause. Ordinary ones are left out.
MAX_OTHERS = 4
_ORDINARY = ("Healthy", "Starting", "Unknown")
_VERBS = {"Failed": "has failed", "Succeeded": "has succeeded"}


def findings(situation: Situation) -> list[Finding]:
    """Returns all findings, one for each cause, the one that matters most first."""
    found: list[Finding] = []
    for rule in _RULES:
        found.extend(finding for finding in rule(situation) if finding.cause not in {each.cause for each in found})
    return [fitted(situation, finding) for finding in found]


def diagnose(situation: Situation) -> Diagnosis:
    """Returns the reason for the job's state."""
    cause, *others = findings(situation)
    job = situation.job
    beginning = f"{job.name} {_VERBS.get(job.phase, f'is {job.phase.lower()}')}"
    if members := situation.view.members(situation.now):
        beginning += f", {members}"
    return Diagnosis(
        **vars(cause),
        namespace=job.namespace,
        name=job.name,
        phase=job.phase,
        sentence=f"{beginning}{' ' if cause.cause == 'Healthy' else ': '}{cause.clause.rstrip('. ')}.",
        others=tuple(other.clause for other in others[:MAX_OTHERS] if other.cause not in _ORDINARY),
        unread=situation.unread,
    )

"""`diagnose` asks the rules in one order: what holds the job up first in its life comes first.

A job that nobody serves has no other cause; one that waits in a queue has no pods to look at; pods that can't be made
can't be scheduled; and so on to a job that runs, which is slow or well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trainmaster.client.diagnosis.containers import container_findings
from trainmaster.client.diagnosis.continuing import continuing_findings
from trainmaster.client.diagnosis.failures import failure_findings
from trainmaster.client.diagnosis.finding import Diagnosis, Finding
from trainmaster.client.diagnosis.gangs import gang_findings
from trainmaster.client.diagnosis.images import image_findings
from trainmaster.client.diagnosis.nodes import node_findings
from trainmaster.client.diagnosis.queueing import queue_findings
from trainmaster.client.diagnosis.quotas import quota_findings
from trainmaster.client.diagnosis.refusals import refusal_findings
from trainmaster.client.diagnosis.scheduling import scheduling_findings
from trainmaster.client.diagnosis.situation import Situation
from trainmaster.client.diagnosis.slowness import progress_findings
from trainmaster.client.diagnosis.unserved import unserved_findings
from trainmaster.client.diagnosis.volumes import volume_findings
from trainmaster.client.sentences import trains_with

_RULES: tuple[Callable[[Situation], Iterator[Finding]], ...] = (
    unserved_findings,
    queue_findings,
    quota_findings,
    refusal_findings,
    gang_findings,
    scheduling_findings,
    node_findings,
    volume_findings,
    image_findings,
    container_findings,
    continuing_findings,
    failure_findings,
    progress_findings,
)
# Findings beside the cause that are worth a line.
MAX_OTHERS = 4


def diagnose(situation: Situation) -> Diagnosis:
    """Returns why the job is as it is."""
    found: list[Finding] = []
    for rule in _RULES:
        found.extend(finding for finding in rule(situation) if finding.cause not in {each.cause for each in found})
    cause, *others = found
    job = situation.job
    members = trains_with(job, situation.now)
    return Diagnosis(
        namespace=job.namespace,
        name=job.name,
        phase=job.phase,
        cause=cause.cause,
        sentence=f"{', '.join(filter(None, (_beginning(job.name, job.phase), members)))}: {cause.clause}.",
        evidence=cause.evidence,
        steps=cause.steps,
        is_certain=cause.is_certain,
        others=tuple(other.clause for other in others[:MAX_OTHERS] if other.cause not in _ORDINARY),
        unread=situation.unread,
    )


# What every job is that has nothing else.
_ORDINARY = ("Healthy", "Starting", "Unknown")


def _beginning(name: str, phase: str) -> str:
    verbs = {"Failed": "has failed", "Succeeded": "has succeeded", "Running": "is running", "Starting": "is starting"}
    return f"{name} {verbs.get(phase, f'is {phase.lower()}')}"

"""Gangs: a scheduler that isn't installed, or a PodGroup that doesn't find all its nodes at once."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainmaster.client.diagnosis.finding import Finding, Step
from trainmaster.client.diagnosis.objects import items, name_of, text
from trainmaster.client.diagnosis.room import resource_noun
from trainmaster.client.diagnosis.situation import Situation
from trainmaster.client.diagnosis.words import read_words
from trainmaster_operator.wire.values import mapping

_SCHEDULERS = {
    "volcano": "Volcano",
    "coscheduling": "the coscheduling plugin",
    "kueue": "Kueue",
    "kubernetes": "Workloads",
}
_ORIGIN = re.compile(r"Origin reason is (.*)", re.DOTALL)


def gang_findings(situation: Situation) -> Iterator[Finding]:
    """Yields what keeps a gang waiting."""
    gang = text(situation.job.raw, "spec", "scheduling", "gang", "scheduler")
    if situation.is_starting and situation.shown_reason == "NotInstalled":
        name = _SCHEDULERS.get(gang, gang)
        clause = f"scheduling.gang asks for {name}, which isn't installed in this cluster"
        step = Step(f"install {name}, or apply the job again without scheduling.gang")
        yield Finding("GangNotInstalled", clause, (f"the operator: {situation.shown_message}",), (step,))
        return
    group = situation.pod_group
    if group is None or not situation.is_starting:
        return
    least = mapping(group.get("spec")).get("minMember")
    for condition in items(group, "status", "conditions"):
        message = text(condition, "message")
        unschedulable = condition.get("type") == "Unschedulable" and condition.get("status") == "True"
        if unschedulable or (condition.get("type") == "PodGroupScheduled" and condition.get("status") == "False"):
            origin = _ORIGIN.search(message)
            words = read_words(origin[1] if origin else message)
            lacking = sorted({resource_noun(one.about) for one in words.of("resource")}) if words else []
            short = f" (too few free {', '.join(lacking)})" if lacking else ""
            clause = f"its gang needs nodes for {least or 'all'} pods at once, and they aren't there{short}"
            steps = (
                Step("wait for others, ask for fewer workers, or for less a worker"),
                Step("the gang", f"kubectl describe podgroup {name_of(group)} {situation.where}"),
            )
            yield Finding("GangWaits", clause, (f"PodGroup {name_of(group)}: {message}",), steps)
            return

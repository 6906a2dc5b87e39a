"""Nodes that don't answer while pods of the job are on them."""

from __future__ import annotations

from collections.abc import Iterator

from trainmaster.client.diagnosis.finding import Finding, Step
from trainmaster.client.diagnosis.objects import condition, joined, name_of, text
from trainmaster.client.diagnosis.room import is_ready
from trainmaster.client.diagnosis.situation import Situation


def node_findings(situation: Situation) -> Iterator[Finding]:
    """Yields the first node that isn't ready and has a pod of the job."""
    if situation.job.finished:
        return
    for node in situation.nodes or ():
        name = name_of(node)
        pods = [name_of(pod) for pod in situation.pods if text(pod, "spec", "nodeName") == name]
        ready = condition(node, "Ready")
        if not pods or not ready or is_ready(node):
            continue
        since = text(ready, "lastTransitionTime")
        evidence = (f"node {name}: {text(ready, 'reason')}: {text(ready, 'message')} (since {since or 'unknown'})",)
        clause = f"node {name} isn't ready, and {joined(pods)} of the job {'is' if len(pods) == 1 else 'are'} on it"
        steps = (
            Step("the operator replaces the pods after failurePolicy.nodes.lostAfterSeconds; look at the node"),
            Step("what it says", f"kubectl describe node {name}"),
        )
        yield Finding("NodeNotReady", clause, evidence, steps)
        return

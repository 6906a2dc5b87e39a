"""Pods that have a node, and whose worker doesn't run."""

from __future__ import annotations

from collections.abc import Iterator

from trainmaster.client.diagnosis.objects import Object, containers, name_of, text
from trainmaster.client.diagnosis.situation import Situation
from trainmaster_operator.wire.values import mapping


def waiting_pods(situation: Situation) -> Iterator[tuple[Object, str, str]]:
    """Yields each such pod with its name and node, while something may keep the job from running."""
    if not situation.is_starting:
        return
    for pod in situation.pods:
        node = text(pod, "spec", "nodeName")
        running = any("running" in mapping(status.get("state")) for name, status in containers(pod) if name == "worker")
        if node and not running:
            yield pod, name_of(pod), node


def waits(status: Object) -> tuple[str, str]:
    """Returns reason and message with which a container waits, or empty texts."""
    return text(status, "state", "waiting", "reason"), text(status, "state", "waiting", "message")

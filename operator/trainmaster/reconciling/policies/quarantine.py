"""Nodes that are blamed again and again are avoided by the job (`failurePolicy.nodes.quarantineAfter`).

A few bad nodes cause half of the failures of large jobs. Each failure that the machine can have caused is counted
against the node of the worker that failed first. At the limit the node goes into `status.avoidedNodes`, which becomes a
preferred node affinity of the pods (a job must not starve because every node is suspect), and the worker there is
replaced before the next attempt opens. Setting `quarantineAfter` to 0 forgives all nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.api.v1alpha1 import Failure
from trainmaster.reconciling.decision import DeletePod, PodRef
from trainmaster.reconciling.observed.situation import Situation
from trainmaster.reconciling.policies.attribution import HARDWARE, Cause

# What a machine can do to a rank. Memory and storage limits, programs and environments are the job's own.
_BLAMED = frozenset({"Signal", "Hung", "AgentLost", "NodeLost"})
# SIGKILL comes from somebody, not from a machine.
_KILLED = 128 + 9
MAX_NODES = 64


def blame(situation: Situation, cause: Cause) -> dict[str, Any]:
    """The changes of the status that a failure brings upon its node."""
    limit = situation.spec.failure_policy.nodes.quarantine_after
    if limit == 0 or cause.node is None or not _is_machines(cause):
        return {}
    blames = {**situation.status.node_failures, cause.node: situation.status.node_failures.get(cause.node, 0) + 1}
    avoided = [node for node, times in blames.items() if times >= limit]
    return {"node_failures": _most_blamed(blames), "avoided_nodes": sorted(avoided)[:MAX_NODES]}


def unblame(situation: Situation, failure: Failure) -> dict[str, Any]:
    """The accounts before a failure was recorded, for a record that is being replaced."""
    limit = situation.spec.failure_policy.nodes.quarantine_after
    times = situation.status.node_failures.get(failure.node or "", 0)
    if times == 0 or not _is_machines(failure):
        return {}
    blames = {**situation.status.node_failures, failure.node or "": times - 1}
    kept = {node: count for node, count in blames.items() if count > 0}
    return {"node_failures": kept, "avoided_nodes": sorted(node for node, count in kept.items() if count >= limit > 0)}


def forgive(situation: Situation) -> dict[str, Any]:
    """Nothing is held against any node when the user says so."""
    if situation.spec.failure_policy.nodes.quarantine_after > 0 or not situation.status.node_failures:
        return {}
    return {"node_failures": {}, "avoided_nodes": []}


def move_workers(situation: Situation) -> tuple[DeletePod, ...]:
    """Delete the pods that shall come back on another node."""
    return tuple(
        DeletePod(PodRef(pod.name, pod.uid), f"node {pod.node} was blamed too often and is avoided")
        for pod in situation.pods.values()
        if pod.uid in situation.to_move and not pod.deleting
    )


def _is_machines(failure: Cause | Failure) -> bool:
    """Whether the machine may have caused it."""
    if failure.reason == "Error":
        # An exception is the program's, unless it speaks of the machine.
        return HARDWARE.search(failure.message) is not None
    return failure.reason in _BLAMED and not (failure.reason == "Signal" and failure.exit_code == _KILLED)


def _most_blamed(blames: Mapping[str, int]) -> dict[str, int]:
    ranked = sorted(blames.items(), key=lambda item: (-item[1], item[0]))
    return dict(ranked[:MAX_NODES])

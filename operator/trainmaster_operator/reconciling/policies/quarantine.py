"""Quarantine makes the job avoid nodes that fail repeatedly (`failurePolicy.nodes.quarantineAfter`).

Each failure that a machine may have caused counts against the node of the worker that failed first. When the count
reaches the limit, the node is added to `status.avoidedNodes`, and the worker's pod is replaced before the next attempt
opens. Pods only prefer other nodes, because a job must not starve if every node is suspect. If the limit is 0, the
counts are cleared.
"""

from __future__ import annotations

from trainmaster_operator.api.v1alpha1 import Failure
from trainmaster_operator.reconciling.decision import DeletePod
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.policies.attribution import HARDWARE
from trainmaster_operator.reconciling.policies.repeated import is_deterministic
from trainmaster_operator.reconciling.transition import NO_CHANGE, StatusChange

# Failures that a machine may cause. Memory limits, storage limits, programs and environments belong to the job.
_OF_MACHINES = frozenset({"Signal", "Hung", "AgentLost", "NodeLost"})
# The exit code after SIGKILL, which doesn't come from a fault of the machine.
_KILLED = 128 + 9
MAX_NODES = 64


def with_failure(situation: Situation, cause: Failure) -> StatusChange:
    """Returns the number of failures of each node, including this failure, and the nodes to avoid."""
    return _recount(situation, cause, 1)


def without_failure(situation: Situation, failure: Failure) -> StatusChange:
    """Returns the counts and the nodes as they were before a failure, which a stronger cause now replaces."""
    return _recount(situation, failure, -1)


def _recount(situation: Situation, failure: Failure, more: int) -> StatusChange:
    limit = situation.spec.failure_policy.nodes.quarantine_after
    known, node = situation.status.node_failures, failure.node
    if limit == 0 or node is None or known.get(node, 0) + more < 0 or not _can_be_the_machine(failure):
        return NO_CHANGE
    failures = {**known, node: known.get(node, 0) + more}
    avoided = sorted(node for node, count in failures.items() if count >= limit)[:MAX_NODES]
    most = sorted(failures.items(), key=lambda item: (-item[1], item[0]))[:MAX_NODES]
    return StatusChange(node_failures={node: count for node, count in most if count}, avoided_nodes=avoided)


def forgive(situation: Situation) -> StatusChange:
    """Clears the counts and the nodes to avoid if the user has set the limit to 0."""
    if situation.spec.failure_policy.nodes.quarantine_after > 0 or not situation.status.node_failures:
        return NO_CHANGE
    return StatusChange(node_failures={}, avoided_nodes=[])


def move_workers(situation: Situation) -> tuple[DeletePod, ...]:
    """Returns the deletions of pods that move to another node."""
    return tuple(
        DeletePod(pod, f"node {pod.node} is avoided after too many failures")
        for pod in situation.pods.values()
        if pod.uid in situation.moving and not pod.deleting
    )


def _can_be_the_machine(failure: Failure) -> bool:
    if failure.reason == "Error":
        # An exception is the program's fault, unless its text shows a failure of the machine.
        text = f"{failure.exception or ''}\n{failure.message}"
        return HARDWARE.search(text) is not None and not is_deterministic(failure)
    return failure.reason in _OF_MACHINES and not (failure.reason == "Signal" and failure.exit_code == _KILLED)

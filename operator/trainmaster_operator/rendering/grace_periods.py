"""Pods have a grace period to end in, of which the ranks get what is left."""

from __future__ import annotations

from trainmaster_operator.api.v1alpha1 import JobSpec

# A checkpoint of a large model takes a while; a job without one ends at once on SIGTERM whatever this is.
GRACE_SECONDS = 60
# The kubelet needs this of the grace period between the last rank's end and SIGKILL to the agent.
GRACE_RESERVE_SECONDS = 5
# An agent out of the kubelet's reach gets this for its ranks to save a checkpoint; one that stands still saves none.
PROBE_GRACE_SECONDS = 30


def pod_grace_seconds(spec: JobSpec) -> int:
    """Returns the pods' terminationGracePeriodSeconds, which the job may set in its podTemplate."""
    asked = spec.pod_template.grace_seconds if spec.pod_template is not None else None
    return GRACE_SECONDS if asked is None else asked


def rank_grace_seconds(spec: JobSpec) -> int:
    """Returns what ranks get between SIGTERM and SIGKILL at a planned stop: the pod's grace period less the kubelet's
    part."""
    return max(pod_grace_seconds(spec) - GRACE_RESERVE_SECONDS, 1)


def probe_grace_seconds(spec: JobSpec) -> int:
    """Returns what a pod gets whose agent didn't answer the kubelet's probe."""
    return min(pod_grace_seconds(spec), PROBE_GRACE_SECONDS)

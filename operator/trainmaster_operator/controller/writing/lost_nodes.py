"""A live read says whether a node is lost, before a pod is deleted by force.

Deleting a pod by force while its node still runs it breaks what a StatefulSet promises, so "not ready" isn't enough:
the node object must be gone, tainted out-of-service by an administrator, or unreachable for longer than the job's limit
(https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown).
"""

from __future__ import annotations

from trainmaster_operator.controller.apiserver.cluster import NODES, Cluster
from trainmaster_operator.controller.apiserver.errors import NotFound
from trainmaster_operator.controller.cache.views import parse_time
from trainmaster_operator.controller.cache.workload_view import conditions_by_type
from trainmaster_operator.wire.values import mapping, mappings

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
UNREACHABLE = "node.kubernetes.io/unreachable"


async def is_lost(cluster: Cluster, node: str, *, lost_after: float, now: float) -> bool:
    """Returns whether the node is lost; `lost_after` in seconds. Raises ClusterError where nodes can't be read."""
    try:
        live = await cluster.get(NODES, "", node)
    except NotFound:
        return True
    taints = mappings(mapping(live.get("spec")).get("taints"))
    if any(taint.get("key") == OUT_OF_SERVICE for taint in taints):
        return True
    ready = mapping(conditions_by_type(mapping(live.get("status"))).get("Ready"))
    if ready.get("status") != "Unknown":
        # The kubelet answers, so it will end the pod itself.
        return False
    added = (parse_time(taint.get("timeAdded")) for taint in taints if taint.get("key") == UNREACHABLE)
    since = [at for at in (*added, parse_time(ready.get("lastTransitionTime"))) if at is not None]
    return bool(since) and now - min(since) >= lost_after

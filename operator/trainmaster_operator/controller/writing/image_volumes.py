"""Whether the API server serves image volumes is asked before the first StatefulSet whose pods have their agent so.

Where its feature gate `ImageVolume` is off, as it is by default in Kubernetes 1.31 to 1.34, the API server accepts the
set and leaves out the volume and its mount (kubernetes: pkg/api/pod/util.go, dropImageVolumes). Its pods would run a
program that isn't there. A dry run shows it, and makes no pod. An older API server refuses the field by itself, because
sets are created with strict field validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster_operator.controller.apiserver.cluster import STATEFUL_SETS, Cluster
from trainmaster_operator.controller.apiserver.errors import Refused
from trainmaster_operator.controller.cache.views import agent_source
from trainmaster_operator.rendering import AgentImageVolume


class ImageVolumes:
    """Asks once, and again after each no: an API server may start anew with other feature gates."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._served = False

    async def require(self, namespace: str, manifest: Mapping[str, Any]) -> None:
        """Ask where a set that is to be created needs it. Raises ClusterError; Refused where they aren't served."""
        agent = agent_source(manifest["spec"]["template"])
        if self._served or not isinstance(agent, AgentImageVolume):
            return
        answer = await self._cluster.create(STATEFUL_SETS, namespace, manifest, dry_run=True)
        if agent_source(answer["spec"]["template"]) != agent:
            raise Refused(
                f"create StatefulSet {namespace}/{manifest['metadata']['name']}",
                f"the API server leaves out the volume of the image {agent.reference!r}, from which pods would have "
                "the agent: its feature gate ImageVolume is off; switch it on (it is from Kubernetes 1.35), or run the "
                "operator without --agent-image-volume: pods then mount the agent from a ConfigMap",
                reason="NoImageVolumes",
            )
        self._served = True

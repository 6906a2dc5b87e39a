"""The place of a cluster's history is announced by a cluster role's annotation, which only administrators write.

A viewer's token is sent to whatever runs there. A namespace and a service of some name prove nothing, since anybody who
may create these may own them. The chart makes the role, and lets everybody who is authenticated read it.
"""

from __future__ import annotations

import re

from trainmaster.client.errors import NoCluster
from trainmaster.client.transport import AsyncTransport
from trainmaster_operator.wire.values import mapping, shown

ROLE = "trainmaster-history"
PATH = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{ROLE}"
ANNOTATION = "trainmaster.dev/history"
_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_PLACE = re.compile(rf"(?P<namespace>{_LABEL})/(?P<service>{_LABEL}):(?P<port>{_LABEL})")


async def announced_prefix(transport: AsyncTransport) -> str:
    """Returns what paths of the history begin with at the API server's proxy. Raises ClientError."""
    role = await transport.request("GET", PATH)
    place = mapping(mapping(role.get("metadata")).get("annotations")).get(ANNOTATION)
    found = _PLACE.fullmatch(place) if isinstance(place, str) else None
    if found is None:
        raise NoCluster(
            f"Cluster role {ROLE}: the annotation {ANNOTATION} is {shown(place)}; an administrator has to set it to "
            "NAMESPACE/SERVICE:PORT, as the chart does."
        )
    return f"/api/v1/namespaces/{found['namespace']}/services/{found['service']}:{found['port']}/proxy"

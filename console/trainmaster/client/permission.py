"""Asks the API server, with the viewer's token, whether an action is allowed, as `kubectl auth can-i` does.

Whatever shows a viewer data that was read with another token (a shared list, the history of a deleted job) asks first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainmaster.client.transport import AsyncTransport
from trainmaster_operator.api.v1alpha1 import GROUP, PLURAL
from trainmaster_operator.wire.values import mapping

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True)
class Access:
    """Access is an action, in RBAC's words. Without a namespace: in all of them; without a name: on any object."""

    verb: str
    resource: str = PLURAL
    group: str = GROUP
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    def to_review(self) -> dict[str, Any]:
        """Returns the SelfSubjectAccessReview."""
        asked = {"verb": self.verb, "group": self.group, "resource": self.resource, "subresource": self.subresource}
        attributes = {**asked, "namespace": self.namespace, "name": self.name}
        return {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {name: value for name, value in attributes.items() if value}},
        }


async def is_allowed(transport: AsyncTransport, access: Access) -> bool:
    """Returns whether the transport's user may do that. Raises NotAllowed for an unknown user, and NoCluster."""
    answer = await transport.request("POST", REVIEWS, body=access.to_review())
    return mapping(answer.get("status")).get("allowed") is True

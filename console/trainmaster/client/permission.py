"""Whether somebody may do something is what the API server answers to a SelfSubjectAccessReview made with their token.

`kubectl auth can-i` asks the same. What shows to a viewer what it was given by another (a list that several share, the
history of a job that is gone) asks here first.
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
    """Access is what somebody wants to do, as RBAC names it. Without a namespace: in all; without a name: to any."""

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
    """Returns whether who sends over this transport may do that. Raises NotAllowed for who isn't known, NoCluster."""
    answer = await transport.request("POST", REVIEWS, body=access.to_review())
    return mapping(answer.get("status")).get("allowed") is True

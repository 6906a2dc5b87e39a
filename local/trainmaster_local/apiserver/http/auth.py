"""These protocols authenticate and authorize users for the HTTP layer.

`trainmaster_local.auth` implements the authorizer by roles and the tokens of service accounts;
`trainmaster_local.access` combines both for a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trainmaster_local.apiserver.apimachinery.errors import ApiError, qualified
from trainmaster_local.apiserver.resources import User

ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))


@dataclass(frozen=True)
class Attributes:
    """A request has these attributes. `path` is set for requests that aren't about resources (`/version`)."""

    user: User
    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""
    namespace: str = ""
    path: str = ""


@dataclass(frozen=True)
class Decision:
    """A decision contains whether a request is allowed, and the reason."""

    allowed: bool
    reason: str = ""


class Authenticator(Protocol):
    def authenticate(self, token: str) -> User | None:
        """Returns the user of a bearer token, or None for an invalid one."""


class Authorizer(Protocol):
    def authorize(self, attributes: Attributes) -> Decision: ...


def refusal(attributes: Attributes, reason: str = "") -> ApiError:
    """Returns the 403 of `pkg/endpoints/handlers/responsewriters/errors.go`."""
    user = attributes.user.name
    more = f": {reason}" if reason else ""
    if attributes.path:
        message = f'forbidden: User "{user}" cannot {attributes.verb} path "{attributes.path}"'
        return ApiError(403, "Forbidden", message + more, details={})
    resource = attributes.resource + (f"/{attributes.subresource}" if attributes.subresource else "")
    place = f'in the namespace "{attributes.namespace}"' if attributes.namespace else "at the cluster scope"
    problem = f'User "{user}" cannot {attributes.verb} resource "{resource}" in API group "{attributes.group}" {place}'
    subject = qualified(attributes.group, attributes.resource) + (f' "{attributes.name}"' if attributes.name else "")
    details = {"name": attributes.name, "group": attributes.group, "kind": attributes.resource}
    found = {key: value for key, value in details.items() if value}
    return ApiError(403, "Forbidden", f"{subject} is forbidden: {problem}{more}", details=found)

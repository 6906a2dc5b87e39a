"""Asks the API server, with the viewer's token, whether an action is allowed, as `kubectl auth can-i` does.

Some code shows a viewer data that was read with another token, such as a shared list or a deleted job's history. Such
code must ask here first.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trainmaster.client.errors import NoCluster, NotAllowed, NotKnown
from trainmaster.client.transport import AsyncTransport
from trainmaster_operator.api.v1alpha1 import GROUP, PLURAL
from trainmaster_operator.wire.values import mapping

Key = TypeVar("Key")
Value = TypeVar("Value")
_ACCOUNT = "system:serviceaccount:"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True)
class Access:
    """Access is an action in RBAC's terms. An empty namespace means all namespaces, an empty name all objects."""

    verb: str
    resource: str = PLURAL
    group: str = GROUP
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    def to_review(self) -> dict[str, Any]:
        """Returns the SelfSubjectAccessReview for this action."""
        attributes = {name: value for name, value in vars(self).items() if value}
        return {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }


async def is_allowed(transport: AsyncTransport, access: Access) -> bool:
    """Returns whether the transport's user may do an action. Raises NoCluster, or NotAllowed for an unknown user."""
    answer = await transport.request("POST", REVIEWS, body=access.to_review())
    return mapping(answer.get("status")).get("allowed") is True


@dataclass(eq=False)
class Gate:
    """Gate checks a viewer's actions, and caches the API server's last `most` answers for some seconds."""

    transport: AsyncTransport
    allowed_seconds: float = 30.0
    refused_seconds: float = 30.0
    most: int = 256
    clock: Callable[[], float] = time.monotonic
    _answers: OrderedDict[Access, tuple[float, bool]] = field(default_factory=OrderedDict, init=False, repr=False)

    async def allows(self, *wanted: Access, fresh: bool = False) -> bool:
        """Returns whether all actions are allowed; `fresh` bypasses the cache. Raises NoCluster and NotAllowed."""
        return all([await self._allows(access, fresh) for access in wanted])

    async def require(self, *wanted: Access, fresh: bool = False) -> None:
        """Raises NotAllowed for the first action that isn't allowed."""
        for access in wanted:
            if not await self._allows(access, fresh):
                raise NotAllowed(refusal(access))

    async def until_refused(self, *wanted: Access, seconds: float) -> None:
        """Repeats the check every `seconds`, and raises NotAllowed once an action is no longer allowed."""
        while True:
            await asyncio.sleep(seconds)
            # An unreachable API server sends no new data either, so nothing needs protection.
            with suppress(NoCluster):
                await self.require(*wanted, fresh=True)

    async def _allows(self, access: Access, fresh: bool) -> bool:
        until, allowed = self._answers.get(access, (0.0, False))
        if not fresh and self.clock() < until:
            return allowed
        try:
            allowed = await is_allowed(self.transport, access)
        except NotKnown:
            self._answers.clear()
            raise
        until = self.clock() + (self.allowed_seconds if allowed else self.refused_seconds)
        put_newest(self._answers, access, (until, allowed), self.most)
        return allowed


def put_newest(remembered: OrderedDict[Key, Value], key: Key, value: Value, most: int) -> None:
    """Stores a value as the newest one, and drops the oldest values beyond the limit."""
    remembered[key] = value
    remembered.move_to_end(key)
    while len(remembered) > most:
        remembered.popitem(last=False)


def party_of(user: str) -> str:
    """Returns the name under which a user's limits are counted. All service accounts of a namespace share a name."""
    return user.rpartition(":")[0] if user.startswith(_ACCOUNT) else user


def seeing(namespace: str | None) -> tuple[Access, Access]:
    """Returns the rights that a viewer needs to see a namespace's jobs. None means all namespaces."""
    return Access("list", namespace=namespace or ""), Access("watch", namespace=namespace or "")


def refusal(access: Access) -> str:
    """Returns the message about a refused action, in RBAC's terms."""
    what = "/".join(part for part in (access.resource, access.subresource) if part)
    which = f" {access.name!r}" if access.name else ""
    where = f"in namespace {access.namespace}" if access.namespace else "in all namespaces"
    if access.resource == "nodes":
        where = "of this cluster"
    hint = "; choose a namespace" if access.resource == PLURAL and not access.namespace else ""
    return f"You may not {access.verb} {what}{which} {where}{hint}."

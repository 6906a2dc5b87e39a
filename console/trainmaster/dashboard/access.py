"""What a viewer may do is asked with their own token (SelfSubjectAccessReview), and believed for half a minute."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field

from trainmaster.client.errors import NoCluster, NotAllowed, NotKnown
from trainmaster.client.permission import Access, is_allowed
from trainmaster.client.transport import AsyncTransport
from trainmaster_operator.api.v1alpha1.names import PLURAL

# Seconds that an answer counts, and how many answers of a viewer are kept.
KEPT_SECONDS = 30.0
MOST_KEPT = 256
# Seconds between two questions whether the viewer of a live answer may still see it.
RECHECK_SECONDS = 60.0


@dataclass
class AccessCache:
    """AccessCache has the answers for one viewer."""

    transport: AsyncTransport
    _answers: OrderedDict[Access, tuple[float, bool]] = field(default_factory=OrderedDict)

    async def allows(self, *wanted: Access, fresh: bool = False) -> bool:
        """Returns whether all that is allowed. Raises NotAllowed for a viewer who isn't known, NoCluster."""
        return all([await self._allows(access, fresh) for access in wanted])

    async def require(self, *wanted: Access, fresh: bool = False) -> None:
        """Raises NotAllowed with a sentence for what isn't allowed."""
        for access in wanted:
            if not await self._allows(access, fresh):
                raise NotAllowed(refusal(access))

    async def until_refused(self, *wanted: Access, seconds: float) -> None:
        """Asks again and again, and raises NotAllowed when something isn't allowed any more."""
        while True:
            await asyncio.sleep(seconds)
            # While the API server can't be asked, it shows nothing new either.
            with suppress(NoCluster):
                await self.require(*wanted, fresh=True)

    async def _allows(self, access: Access, fresh: bool) -> bool:
        known = self._answers.get(access)
        if known is not None and not fresh and time.monotonic() - known[0] < KEPT_SECONDS:
            return known[1]
        try:
            allowed = await is_allowed(self.transport, access)
        except NotKnown:
            self._answers.clear()
            raise
        self._answers[access] = (time.monotonic(), allowed)
        self._answers.move_to_end(access)
        while len(self._answers) > MOST_KEPT:
            self._answers.popitem(last=False)
        return allowed


def seeing(namespace: str | None) -> tuple[Access, Access]:
    """Returns what a viewer has to be allowed for the list of a namespace's jobs; None: of all."""
    return Access("list", namespace=namespace or ""), Access("watch", namespace=namespace or "")


def refusal(access: Access) -> str:
    """Returns in a sentence what isn't allowed, as RBAC names it."""
    what = f"{access.resource}/{access.subresource}" if access.subresource else access.resource
    where = f"in namespace {access.namespace}" if access.namespace else "in all namespaces"
    if access.resource == "nodes":
        where = "of this cluster"
    hint = "; choose a namespace" if access.resource == PLURAL and not access.namespace else ""
    return f"You may not {access.verb} {what} {where}{hint}."

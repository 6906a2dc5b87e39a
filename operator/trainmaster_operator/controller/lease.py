"""Leader election uses a Lease, with the rules of client-go's `tools/leaderelection`.

`kubernetes.aio.leaderelection` isn't used, because in version 37 a connection error ends its loop, a request can hang
past the renewal deadline, local times are written as UTC, and the lease isn't released on exit. The rules:

- A candidate may take another holder's lease once the lease has stayed unchanged for `lease_seconds`, by the
  candidate's own clock. Clocks of different nodes are never compared. A released lease (without a holder) can be taken
  at once.
- The leader renews the lease every `retry_seconds`. If it fails to renew for `renew_seconds`, which is less than
  `lease_seconds`, the lease is lost: `hold` returns, and the process must end.
- Writes carry the resourceVersion, so if two candidates write at once, one of them gets a Conflict.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from typing import Any

from trainmaster_operator.api.times import to_micro_text
from trainmaster_operator.controller.apiserver.cluster import LEASES, Cluster, RawObject
from trainmaster_operator.controller.apiserver.errors import AlreadyExists, ClusterError, Conflict, NotFound
from trainmaster_operator.controller.settings import OperatorSettings

logger = logging.getLogger(__name__)

# Number of tries to release a lease. A try fails if a renewal that was still on its way is carried out first.
RELEASE_TRIES = 3


class LeaderLease:
    """Represents one candidate.

    Call `acquire`, then `hold`, which returns when the lease is lost. Call `release` on a planned exit.
    """

    def __init__(self, cluster: Cluster, settings: OperatorSettings, identity: str) -> None:
        self._cluster = cluster
        self._settings = settings
        self._identity = identity
        self._place = (LEASES, settings.lease_namespace, settings.lease_name)
        # The lease's spec as last seen, and when it was first seen.
        self._seen: Mapping[str, Any] | None = None
        self._seen_at = 0.0
        # When the last successful renewal was sent. That is earlier than its answer, and earlier than the moment when
        # other candidates see the renewal, from which they count.
        self._renewed_at = 0.0
        self.leading = False

    async def acquire(self) -> None:
        """Returns once this candidate is the leader."""
        reported = ""
        while True:
            try:
                if await self._acquire_or_renew():
                    logger.info("This operator (%s) is the leader.", self._identity)
                    self.leading = True
                    return
                level, text = logging.INFO, f"Waiting: the leader is {self._holder()}."
            except ClusterError as error:
                level, text = logging.WARNING, f"The lease can't be taken; trying again: {self._problem(error)}"
            if text != reported:
                logger.log(level, "%s", text)
                reported = text
            # The jitter (factor 1.2, as in client-go) keeps candidates from trying at the same moment.
            await asyncio.sleep(self._settings.retry_seconds * (1.0 + 1.2 * random.random()))

    async def hold(self) -> None:
        """Renew the lease, and return when it is lost. Call this after `acquire`.

        The lease is lost if another candidate takes it, or if no renewal succeeds for `renew_seconds`.
        """
        loop = asyncio.get_running_loop()
        while True:
            deadline = self._renewed_at + self._settings.renew_seconds
            await asyncio.sleep(self._settings.retry_seconds)
            try:
                async with asyncio.timeout_at(deadline):
                    if not await self._acquire_or_renew():
                        logger.error("The lease was taken by %s.", self._holder())
                        self.leading = False
                        return
            except (ClusterError, TimeoutError) as error:
                logger.warning("The lease can't be renewed: %s", str(error) or "no answer in time")
                if loop.time() >= deadline - self._settings.retry_seconds:
                    self.leading = False
                    return

    async def publish(self) -> None:
        """Renew the lease without a holder, forever. Call this instead of `acquire` if there is no election.

        The console reads the lease's time to show since when no operator has been seen. Without a holder, the lease
        keeps no candidate from leading.
        """
        reported = ""
        while True:
            try:
                await self._acquire_or_renew()
            except ClusterError as error:
                if str(error) != reported:
                    logger.info("The lease can't be published, so views can't show when this operator ends: %s", error)
                    reported = str(error)
            await asyncio.sleep(self._settings.retry_seconds)

    def is_held(self) -> bool:
        """Returns whether, according to the clock, no other candidate can lead yet.

        `hold` reports a lost lease only when it next runs. If the process was paused, or the event loop was blocked,
        other tasks may run first, so this method is called before each write.
        """
        until = self._renewed_at + self._settings.renew_seconds
        return self.leading and asyncio.get_running_loop().time() < until

    async def release(self) -> None:
        """Release the lease, so that another candidate needn't wait until it expires."""
        if not self.leading:
            return
        self.leading = False
        problem: ClusterError | None = None
        for _ in range(RELEASE_TRIES):
            try:
                # Read the current lease, because a renewal that was just cancelled may have changed it, or may still
                # change it.
                found = await self._cluster.get(*self._place)
                spec = found.get("spec") or {}
                if spec.get("holderIdentity") == self._identity:
                    body = {**found, "spec": {**spec, "holderIdentity": "", "leaseDurationSeconds": 1}}
                    await self._cluster.replace(*self._place, body)
                return
            except ClusterError as error:
                problem = error
                if not isinstance(error, Conflict):
                    break
        logger.warning("The lease wasn't released: %s", problem)

    def _problem(self, error: ClusterError) -> str:
        if not isinstance(error, NotFound):
            return str(error)
        namespace = self._settings.lease_namespace
        return (
            f"{error}; make it (kubectl create namespace {namespace}) or choose another (--lease-namespace); "
            "an operator that runs alone needs no lease (--no-leader-elect)"
        )

    async def _acquire_or_renew(self) -> bool:
        """Acquire or renew the lease; returns False if another candidate holds it."""
        started = asyncio.get_running_loop().time()
        try:
            found: RawObject | None = await self._cluster.get(*self._place)
        except NotFound:
            found = None
        if found is not None:
            if found.get("spec") != self._seen:
                self._observe(found)
            expired = asyncio.get_running_loop().time() >= self._seen_at + self._settings.lease_seconds
            if self._holder() not in ("", self._identity) and not expired:
                return False
        try:
            if found is None:
                self._observe(await self._cluster.create(*self._place[:2], self._body(None)))
            else:
                self._observe(await self._cluster.replace(*self._place, self._body(found)))
        except AlreadyExists:
            return False
        except Conflict:
            if self.leading:
                # The lease was changed by another candidate, or by our own write whose answer was lost. The next try
                # shows which; this try renewed nothing.
                raise
            return False
        self._renewed_at = started
        return True

    def _observe(self, lease: RawObject) -> None:
        self._seen = lease.get("spec")
        self._seen_at = asyncio.get_running_loop().time()

    def _holder(self) -> str:
        return str((self._seen or {}).get("holderIdentity") or "")

    def _body(self, found: RawObject | None) -> dict[str, Any]:
        settings = self._settings
        now = to_micro_text(time.time())
        before = (found or {}).get("spec") or {}
        renewing = before.get("holderIdentity") == self._identity
        metadata = {"name": settings.lease_name, "namespace": settings.lease_namespace}
        if found is not None:
            metadata["resourceVersion"] = found["metadata"]["resourceVersion"]
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(settings.lease_seconds)),
            "acquireTime": before.get("acquireTime") or now if renewing else now,
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if renewing or not before else 1),
        }
        return LEASES.body(metadata=metadata, spec=spec)

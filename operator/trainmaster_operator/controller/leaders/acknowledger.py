"""Acknowledges reports to a job's leader, so that their workers needn't make them by exiting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from trainmaster_operator.controller.apiserver.errors import ClusterError

logger = logging.getLogger(__name__)

# Seconds between two acknowledgements: each costs a connection, and the newest is one for all before it.
ACKNOWLEDGE_SECONDS = 0.25


class Acknowledger:
    """Sends the leader the newest number that has been recorded: one request at a time, in the background."""

    def __init__(self, post: Callable[[int], Awaitable[None]]) -> None:
        self._post = post
        self._newest = self._acknowledged = 0
        self._task: asyncio.Task[None] | None = None

    def acknowledge(self, seq: int) -> None:
        self._newest = max(self._newest, seq)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _send(self) -> None:
        while self._acknowledged < self._newest:
            seq = self._newest
            try:
                await self._post(seq)
            except ClusterError as error:
                # The next report or the next stream acknowledges again; the agent's own fallback is its exit.
                logger.debug("Reports up to %d not acknowledged: %s", seq, error)
                return
            self._acknowledged = seq
            await asyncio.sleep(ACKNOWLEDGE_SECONDS)

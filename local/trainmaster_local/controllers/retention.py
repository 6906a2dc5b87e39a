"""Deletes old events: kube-apiserver's `--event-ttl` is an hour."""

from __future__ import annotations

import asyncio

from trainmaster_local.ages import seconds_since_epoch
from trainmaster_local.apiserver.api import Api, ApiError

EVENT_SECONDS = 3600.0
_LOOK_SECONDS = 60.0


class EventRetention:
    """This task deletes events that haven't changed for an hour."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            oldest = self._api.clock() - EVENT_SECONDS
            for index, event in enumerate(self._api.peek_all("events")):
                metadata = event["metadata"]
                last = event.get("lastTimestamp") or event.get("eventTime") or metadata["creationTimestamp"]
                if seconds_since_epoch(last) < oldest:
                    try:
                        await self._api.delete("events", metadata["name"], metadata["namespace"])
                    except ApiError:
                        continue  # already deleted, with its namespace
                if index % 500 == 499:
                    await asyncio.sleep(0)

"""Sends events to the webhook, in the order in which they happened, one after the other, in the background.

Nothing waits for it: what comes while QUEUED events wait is dropped and counted. What can't be delivered is tried again
(no answer, 408, 425, 429 and 5xx) for GIVE_UP_SECONDS, then dropped; another answer (4xx, a redirect, which isn't
followed) drops it at once. An event may come twice, where its answer was lost, and none comes again after the operator
has ended: who has to know a job's state asks for the job.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable
from typing import Literal

import aiohttp

from trainmaster.controller.outgoing.headers import UnusableFile, read_headers
from trainmaster.controller.outgoing.posting import Answer, Complaints, open_session, pause, post
from trainmaster.controller.webhook.cloud_events import CONTENT_TYPE, Event

logger = logging.getLogger(__name__)

QUEUED = 1_000
# Seconds for an answer, and for all tries of one event.
ANSWER_SECONDS, GIVE_UP_SECONDS = 10.0, 300.0
FIRST_RETRY = 0.5
# Seconds in which what waits is still sent when the operator stops.
LAST_SECONDS = 2.0

# What becomes of an event: `full` was dropped before it was tried, `refused` by the answer, `expired` after all tries.
Outcome = Literal["delivered", "full", "refused", "expired"]


class Webhook:
    """See the module. `count` is told what becomes of each event."""

    def __init__(
        self,
        url: str,
        headers_file: str | None,
        count: Callable[[Outcome], None],
        *,
        answer_seconds: float = ANSWER_SECONDS,
        give_up_seconds: float = GIVE_UP_SECONDS,
        first_retry: float = FIRST_RETRY,
    ) -> None:
        self._url = url
        self._headers_file = headers_file
        self._count = count
        self._answer_seconds = answer_seconds
        self._give_up_seconds = give_up_seconds
        self._first_retry = first_retry
        self._waiting: deque[Event] = deque()
        self._task: asyncio.Task[None] | None = None
        self._complaints = Complaints(logger, "The webhook")

    def send(self, event: Event) -> None:
        """Send an event when its turn comes; returns at once."""
        if len(self._waiting) >= QUEUED:
            self._drop("full", f"{QUEUED} events wait already")
            return
        self._waiting.append(event)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="webhook")

    async def close(self) -> None:
        """Send what waits, but not for long, and end."""
        if self._task is None:
            return
        await asyncio.wait({self._task}, timeout=LAST_SECONDS)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        # A session for each run of events: hours may lie between two.
        async with open_session(self._answer_seconds) as session:
            while self._waiting:
                await self._deliver(session, self._waiting[0])
                self._waiting.popleft()

    async def _deliver(self, session: aiohttp.ClientSession, event: Event) -> None:
        """Send an event, again and again where that may help."""
        clock = asyncio.get_running_loop().time
        body, until, tries = json.dumps(event).encode(), clock() + self._give_up_seconds, 0
        while True:
            answer = await self._post(session, body)
            if not answer.problem:
                self._count("delivered")
                return
            if not answer.may_pass:
                self._drop("refused", answer.problem)
                return
            wait = pause(self._first_retry, tries, answer.wait)
            tries += 1
            if clock() + wait > until:
                self._drop("expired", f"{answer.problem}, in {tries} tries")
                return
            self._complaints.say(f"{answer.problem}; trying again")
            await asyncio.sleep(wait)

    async def _post(self, session: aiohttp.ClientSession, body: bytes) -> Answer:
        try:
            headers = {**read_headers(self._headers_file, "--webhook-headers-file"), "Content-Type": CONTENT_TYPE}
        except UnusableFile as error:
            return Answer(0, str(error))
        # What the answer says beside its status is nobody's input.
        return await post(session, self._url, body, headers)

    def _drop(self, outcome: Outcome, problem: str) -> None:
        self._count(outcome)
        self._complaints.say(f"an event was dropped ({outcome}): {problem}")

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
import random
from collections import deque
from collections.abc import Callable
from typing import Literal

import aiohttp

from trainmaster.controller.webhook.cloud_events import CONTENT_TYPE, Event
from trainmaster.controller.webhook.headers import UnusableHeaders, read_headers

logger = logging.getLogger(__name__)

QUEUED = 1_000
# Seconds for an answer, and for all tries of one event.
ANSWER_SECONDS, GIVE_UP_SECONDS = 10.0, 300.0
FIRST_RETRY, LONGEST_RETRY = 0.5, 30.0
# Seconds in which what waits is still sent when the operator stops.
LAST_SECONDS = 2.0
# Seconds between two lines of the log about what goes wrong; the metric counts all.
LOG_SECONDS = 60.0
AGAIN = frozenset({408, 425, 429})

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
        self._logged_at = float("-inf")

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
        async with aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=self._answer_seconds),
        ) as session:
            while self._waiting:
                await self._deliver(session, self._waiting[0])
                self._waiting.popleft()

    async def _deliver(self, session: aiohttp.ClientSession, event: Event) -> None:
        """Send an event, again and again where that may help."""
        clock = asyncio.get_running_loop().time
        body, until, tries = json.dumps(event).encode(), clock() + self._give_up_seconds, 0
        while True:
            answer, problem, wait = await self._post(session, body)
            if answer == "delivered":
                self._count("delivered")
                return
            if answer == "refused":
                self._drop("refused", problem)
                return
            backoff = min(self._first_retry * 2.0 ** min(tries, 20), LONGEST_RETRY) * (0.8 + 0.4 * random.random())
            pause = max(backoff, min(wait, LONGEST_RETRY))
            tries += 1
            if clock() + pause > until:
                self._drop("expired", f"{problem}, in {tries} tries")
                return
            self._complain(f"{problem}; trying again")
            await asyncio.sleep(pause)

    async def _post(self, session: aiohttp.ClientSession, body: bytes) -> tuple[str, str, float]:
        """Send a request; returns whether that is the end of it, what was wrong, and the seconds that are asked for."""
        try:
            headers = {**read_headers(self._headers_file), "Content-Type": CONTENT_TYPE}
            request = session.post(self._url, data=body, headers=headers, allow_redirects=False)
            async with request as answer:
                # What it says beside that is nobody's input.
                status, asked = answer.status, answer.headers.get("Retry-After", "")
        except UnusableHeaders as error:
            return "", str(error), 0.0
        except TimeoutError:
            return "", f"no answer within {self._answer_seconds:g} s", 0.0
        except (aiohttp.ClientError, OSError) as error:
            return "", f"no connection, or no answer of HTTP ({type(error).__name__})", 0.0
        if 200 <= status < 300:
            return "delivered", "", 0.0
        problem = f"the answer is HTTP {status}"
        if status in AGAIN or status >= 500:
            return "", problem, float(asked) if asked.isascii() and asked.isdecimal() and len(asked) < 6 else 0.0
        return "refused", problem, 0.0

    def _drop(self, outcome: Outcome, problem: str) -> None:
        self._count(outcome)
        self._complain(f"an event was dropped ({outcome}): {problem}")

    def _complain(self, sentence: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            logger.warning("The webhook: %s", sentence)

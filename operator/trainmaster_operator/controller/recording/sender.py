"""Sends what waits in the outbox to the history, a batch at a time, in its order.

Nothing waits for it, and it never gives up: what a history that is away can't take yet stays in the outbox, which is
bounded. Only what the history says is no record (400), or too much (413), is dropped. An operator that doesn't lead any
more sends nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import aiohttp

from trainmaster_operator.api.evidence import clean
from trainmaster_operator.controller.recording.lines import MAX_LINE
from trainmaster_operator.controller.recording.outbox import Entry, Outbox, Outcome
from trainmaster_operator.controller.recording.posting import (
    LONGEST_RETRY,
    Answer,
    Complaints,
    open_session,
    pause,
    post,
)
from trainmaster_operator.controller.recording.writer_token import UnusableFile, read_token
from trainmaster_operator.wire.values import loads, mapping

logger = logging.getLogger(__name__)

# Seconds for which a record waits for others to go with it.
BATCH_SECONDS = 0.5
# Seconds for an answer, which comes after the history's commit.
ANSWER_SECONDS = 15.0
FIRST_RETRY = 0.5
# Seconds in which what waits is still sent when the operator stops.
LAST_SECONDS = 2.0
MOST_READ = 4_096
_REFUSED = frozenset({400, 413})
_HEADERS = {"Content-Type": "application/x-ndjson", "Accept-Encoding": "identity"}


class Sender:
    """See the module. `count` is told what becomes of records; `leads`: whether this operator still leads."""

    def __init__(
        self,
        url: str,
        token_file: str | None,
        outbox: Outbox,
        count: Callable[[Outcome, int], None],
        leads: Callable[[], bool],
        *,
        batch_seconds: float = BATCH_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
        first_retry: float = FIRST_RETRY,
        slow_retry: float = LONGEST_RETRY,
    ) -> None:
        self._url = f"{url}/v1/records"
        self._token_file = token_file
        self._outbox = outbox
        self._count = count
        self._leads = leads
        self._batch_seconds = batch_seconds
        self._answer_seconds = answer_seconds
        self._first_retry = first_retry
        self._slow_retry = slow_retry
        # What was taken from the outbox, until the history has it.
        self._batch: Sequence[Entry] = ()
        self._complaints = Complaints(logger, f"The history at {url}")

    async def run(self) -> None:
        """Send until cancelled."""
        async with open_session(self._answer_seconds) as session:
            while True:
                # A turn each half second costs nothing, and nobody has to wake this.
                if self._outbox.size < MAX_LINE:
                    await asyncio.sleep(self._batch_seconds)
                await self._send_batch(session)

    async def finish(self) -> None:
        """Send what waits, but not for long."""
        try:
            async with asyncio.timeout(LAST_SECONDS), open_session(self._answer_seconds) as session:
                while (self._batch or len(self._outbox)) and self._leads():
                    await self._send_batch(session)
        except TimeoutError:
            logger.info("The history: %d records weren't sent.", len(self._batch) + len(self._outbox))

    async def _send_batch(self, session: aiohttp.ClientSession) -> None:
        """Send a batch, again and again, until the history has it or says that it never will."""
        self._batch = self._batch or self._outbox.take(MAX_LINE)
        if not self._batch:
            return
        body = b"".join(entry.line + b"\n" for entry in self._batch)
        tries = 0
        while True:
            answer = await self._post(session, body)
            if not answer.problem:
                self._count("sent", len(self._batch))
                if tries:
                    logger.info("The history takes records again.")
                break
            if answer.status in _REFUSED:
                self._count("refused", len(self._batch))
                self._complaints.say(f"{len(self._batch)} records were refused: {answer.problem}")
                break
            self._complaints.say(f"{answer.problem}; trying again")
            wait = pause(self._first_retry, tries, answer.wait) if answer.may_pass else self._slow_retry
            await asyncio.sleep(wait)
            tries += 1
        self._batch = ()
        self._outbox.done()

    async def _post(self, session: aiohttp.ClientSession, body: bytes) -> Answer:
        if not self._leads():
            return Answer(0, "this operator doesn't lead")
        try:
            headers = {**_HEADERS, **read_token(self._token_file, "--history-token-file")}
        except UnusableFile as error:
            return Answer(0, str(error))
        answer = await post(session, self._url, body, headers, most_read=MOST_READ)
        said = _object(answer.body)
        if answer.problem and said.get("message"):
            return Answer(answer.status, f"{answer.problem}: {clean(said['message'], 300)}", answer.wait)
        if answer.status == 401:
            return Answer(401, "the answer is HTTP 401: --history-token-file hasn't the token that the history takes")
        if not answer.problem and said.get("kind") != "Recorded":
            return Answer(answer.status, "what answers is no history; --history-url has to be the address of one")
        return answer


def _object(body: bytes) -> dict[str, object]:
    try:
        return dict(mapping(loads(body)))
    except ValueError:
        return {}

"""The sender posts the outbox's records to the history in order, one batch at a time.

Nothing waits for the sender, and it never gives up. While the history can't be reached, records stay in the outbox,
which is bounded. Only records that the history calls invalid (400) or too large (413) are dropped. An operator that no
longer leads sends nothing. The server at the address isn't trusted, so redirects aren't followed, cookies aren't kept,
and only a limited part of an answer is read. The file with the writer token, such as a key of a mounted Secret, is read
for each request, so that the token can be renewed while the operator runs.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import aiohttp

from trainmaster_operator.api.evidence import clean
from trainmaster_operator.controller.background import FailureLog, backoff
from trainmaster_operator.controller.recording.outbox import MAX_LINE, Outbox, Outcome, WaitingRecord
from trainmaster_operator.wire.values import loads, mapping

logger = logging.getLogger(__name__)
# Seconds that a record waits, so that later records can join its batch.
BATCH_SECONDS = 0.5
# Timeout in seconds for an answer, which the history sends after it has stored the records.
ANSWER_SECONDS = 15.0
FIRST_RETRY = 0.5
# Seconds for sending waiting records when the operator stops.
LAST_SECONDS = 2.0
MOST_READ = 4_096
LONGEST_RETRY = 30.0
MOST_TOKEN_BYTES = 64 * 1024
_TOKEN = re.compile(r"[\x21-\x7e]+")
_HEADERS = {"Content-Type": "application/x-ndjson", "Accept-Encoding": "identity"}
# HTTP statuses for records that will never be accepted, and statuses (besides 5xx) after which a later try may succeed.
_REFUSED, _AGAIN = frozenset({400, 413}), frozenset({408, 425, 429})


class _Answer(NamedTuple):
    """Holds the result of a request: the problem, if any, and the HTTP status (0 if there was no answer)."""

    problem: str
    status: int = 0
    # Seconds to wait before the next try, as requested by the history.
    wait: float = 0.0


class UnusableFile(Exception):
    """The file can't be used; the message gives the reason, without the file's content."""


@dataclass(eq=False)
class Sender:
    """Posts batches of records. `count` is called with outcomes; `leads` returns whether this operator still leads."""

    url: str
    token_file: str | None
    outbox: Outbox
    count: Callable[[Outcome, int], None]
    leads: Callable[[], bool]
    batch_seconds: float = BATCH_SECONDS
    answer_seconds: float = ANSWER_SECONDS
    first_retry: float = FIRST_RETRY
    slow_retry: float = LONGEST_RETRY
    # Records taken from the outbox, until the history has stored them.
    _batch: Sequence[WaitingRecord] = field(default_factory=lambda: (), init=False)

    def __post_init__(self) -> None:
        self._failures = FailureLog(logger, f"The history at {self.url}")

    async def run(self) -> None:
        async with self._session() as session:
            while True:
                # Checking twice a second is cheap, and simpler than a wake-up call.
                if self.outbox.size < MAX_LINE:
                    await asyncio.sleep(self.batch_seconds)
                await self._send_batch(session)

    async def finish(self) -> None:
        """Send waiting records, for LAST_SECONDS at most."""
        try:
            async with asyncio.timeout(LAST_SECONDS), self._session() as session:
                while (self._batch or len(self.outbox)) and self.leads():
                    await self._send_batch(session)
        except TimeoutError:
            logger.info("The history: %d records weren't sent.", len(self._batch) + len(self.outbox))

    async def _send_batch(self, session: aiohttp.ClientSession) -> None:
        """Send a batch repeatedly until the history accepts it or refuses it permanently."""
        self._batch = self._batch or self.outbox.take(MAX_LINE)
        if not self._batch:
            return
        body = b"".join(entry.line + b"\n" for entry in self._batch)
        tries = 0
        while True:
            answer = await self._post(session, body)
            if not answer.problem:
                self.count("sent", len(self._batch))
                if tries:
                    logger.info("The history takes records again.")
                break
            if answer.status in _REFUSED:
                self.count("refused", len(self._batch))
                self._failures.report(f"{len(self._batch)} records were refused: {answer.problem}")
                break
            self._failures.report(f"{answer.problem}; trying again")
            wait = self.slow_retry
            if answer.status == 0 or answer.status in _AGAIN or answer.status >= 500:
                pause = backoff(tries, self.first_retry, LONGEST_RETRY) * (0.8 + 0.4 * random.random())
                wait = max(pause, min(answer.wait, LONGEST_RETRY))
            await asyncio.sleep(wait)
            tries += 1
        self._batch = ()
        self.outbox.done()

    def _session(self) -> aiohttp.ClientSession:
        # `_post` limits the time: a timeout of aiohttp can lose a cancellation that arrives at the same moment.
        timeout = aiohttp.ClientTimeout(total=None)
        return aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, timeout=timeout)

    async def _post(self, session: aiohttp.ClientSession, body: bytes) -> _Answer:
        if not self.leads():
            return _Answer("this operator doesn't lead")
        url, read = f"{self.url}/v1/records", b""
        try:
            headers = {**_HEADERS, **token_header(self.token_file)}
            posting = session.post(url, data=body, headers=headers, allow_redirects=False)
            async with asyncio.timeout(self.answer_seconds), posting as answer:
                status, asked = answer.status, answer.headers.get("Retry-After", "")
                while len(read) < MOST_READ and (some := await answer.content.read(MOST_READ - len(read))):
                    read += some
        except UnusableFile as error:
            return _Answer(str(error))
        except TimeoutError:
            return _Answer(f"no answer within {self.answer_seconds:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return _Answer(f"no connection, or no answer of HTTP ({type(error).__name__})")
        reply, problem = _object(read), f"the answer is HTTP {status}"
        if 200 <= status < 300:
            recorded = reply.get("kind") == "Recorded"
            problem = "" if recorded else "what answers is no history; --history-url has to be the address of one"
        elif reply.get("message"):
            problem += f": {clean(reply['message'], 300)}"
        elif status == 401:
            problem += ": --history-token-file hasn't the token that the history takes"
        wait = float(asked) if asked.isascii() and asked.isdecimal() and len(asked) < 6 else 0.0
        return _Answer(problem, status, wait)


def _object(body: bytes) -> dict[str, object]:
    try:
        return dict(mapping(loads(body)))
    except ValueError:
        return {}


def token_header(path: str | None) -> dict[str, str]:
    """Returns the header with a file's bearer token, or no header if no file is given. Raises UnusableFile."""
    if path is None:
        return {}
    try:
        with Path(path).open("rb") as file:
            token = file.read(MOST_TOKEN_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableFile(f"--history-token-file: {path} can't be read: {error}") from error
    if not _TOKEN.fullmatch(token):
        raise UnusableFile(f"--history-token-file: {path} has to be one token, without spaces")
    return {"Authorization": f"Bearer {token}"}

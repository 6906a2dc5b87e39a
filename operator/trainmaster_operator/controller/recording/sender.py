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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from trainmaster_operator.api.evidence import clean
from trainmaster_operator.controller.recording.outbox import MAX_LINE, Complaints, Outbox, Outcome, WaitingRecord
from trainmaster_operator.wire.values import loads, mapping

logger = logging.getLogger(__name__)
# Seconds that a record waits for others to share its batch.
BATCH_SECONDS = 0.5
# Timeout in seconds for an answer, which the history sends after it has stored the records.
ANSWER_SECONDS = 15.0
FIRST_RETRY = 0.5
# Seconds for sending waiting records when the operator stops.
LAST_SECONDS = 2.0
MOST_READ = 4_096
_REFUSED = frozenset({400, 413})
_HEADERS = {"Content-Type": "application/x-ndjson", "Accept-Encoding": "identity"}
# The caller chooses the first pause; the longest is the same for all.
LONGEST_RETRY = 30.0
_AGAIN = frozenset({408, 425, 429})
MOST_TOKEN_BYTES = 64 * 1024
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True)
class Answer:
    """The result of a request: the status (0 if there was no answer), and a description of the problem."""

    status: int
    problem: str = ""
    # Seconds to wait before the next try, as requested by the server.
    wait: float = 0.0
    body: bytes = b""

    @property
    def may_pass(self) -> bool:
        """Returns whether the same request may succeed a little later."""
        return self.status == 0 or self.status in _AGAIN or self.status >= 500


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
        self._complaints = Complaints(logger, f"The history at {self.url}")

    async def run(self) -> None:
        """Send until cancelled."""
        async with open_session(self.answer_seconds) as session:
            while True:
                # Checking twice a second is cheap, and simpler than a wake-up call.
                if self.outbox.size < MAX_LINE:
                    await asyncio.sleep(self.batch_seconds)
                await self._send_batch(session)

    async def finish(self) -> None:
        """Send waiting records, for LAST_SECONDS at most."""
        try:
            async with asyncio.timeout(LAST_SECONDS), open_session(self.answer_seconds) as session:
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
                self._complaints.say(f"{len(self._batch)} records were refused: {answer.problem}")
                break
            self._complaints.say(f"{answer.problem}; trying again")
            wait = pause(self.first_retry, tries, answer.wait) if answer.may_pass else self.slow_retry
            await asyncio.sleep(wait)
            tries += 1
        self._batch = ()
        self.outbox.done()

    async def _post(self, session: aiohttp.ClientSession, body: bytes) -> Answer:
        if not self.leads():
            return Answer(0, "this operator doesn't lead")
        try:
            headers = {**_HEADERS, **read_token(self.token_file, "--history-token-file")}
        except UnusableFile as error:
            return Answer(0, str(error))
        answer = await post(session, f"{self.url}/v1/records", body, headers, most_read=MOST_READ)
        reply = _object(answer.body)
        if answer.problem and reply.get("message"):
            return Answer(answer.status, f"{answer.problem}: {clean(reply['message'], 300)}", answer.wait)
        if answer.status == 401:
            return Answer(401, "the answer is HTTP 401: --history-token-file hasn't the token that the history takes")
        if not answer.problem and reply.get("kind") != "Recorded":
            return Answer(answer.status, "what answers is no history; --history-url has to be the address of one")
        return answer


def _object(body: bytes) -> dict[str, object]:
    try:
        return dict(mapping(loads(body)))
    except ValueError:
        return {}


def open_session(answer_seconds: float) -> aiohttp.ClientSession:
    """Returns a session for `post`, which waits `answer_seconds` for each answer to be complete."""
    return aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, timeout=aiohttp.ClientTimeout(total=answer_seconds)
    )


async def post(
    session: aiohttp.ClientSession, url: str, body: bytes, headers: Mapping[str, str], *, most_read: int = 0
) -> Answer:
    """Send a request, and read at most `most_read` bytes of the answer's body."""
    try:
        async with session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
            status, asked, read = answer.status, answer.headers.get("Retry-After", ""), b""
            while len(read) < most_read and (some := await answer.content.read(most_read - len(read))):
                read += some
    except TimeoutError:
        return Answer(0, f"no answer within {session.timeout.total:g} s")
    except (aiohttp.ClientError, OSError) as error:
        return Answer(0, f"no connection, or no answer of HTTP ({type(error).__name__})")
    if 200 <= status < 300:
        return Answer(status, body=read)
    wait = float(asked) if asked.isascii() and asked.isdecimal() and len(asked) < 6 else 0.0
    return Answer(status, f"the answer is HTTP {status}", wait, read)


def pause(first: float, tries: int, wait: float = 0.0) -> float:
    """Returns the seconds until the next try, which double with each try, or are as long as the server requests."""
    backoff = min(first * 2.0 ** min(tries, 20), LONGEST_RETRY) * (0.8 + 0.4 * random.random())
    return max(backoff, min(wait, LONGEST_RETRY))


def read_token(path: str | None, option: str) -> dict[str, str]:
    """Returns the header with a file's bearer token, or no header if no file is given. Raises UnusableFile."""
    if path is None:
        return {}
    try:
        with Path(path).open("rb") as file:
            token = file.read(MOST_TOKEN_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableFile(f"{option}: {path} can't be read: {error}") from error
    if not _TOKEN.fullmatch(token):
        raise UnusableFile(f"{option}: {path} has to be one token, without spaces")
    return {"Authorization": f"Bearer {token}"}

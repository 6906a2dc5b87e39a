"""A request is posted to the history, and what comes of it is one value: nothing is raised.

A redirect isn't followed, cookies aren't kept, and of an answer no more is read than was asked for: whatever listens
there may be anything.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

# The first pause is its caller's, the longest is the same for all.
LONGEST_RETRY = 30.0
# Seconds between two lines of the log about what goes wrong; the metrics count all.
LOG_SECONDS = 60.0
_AGAIN = frozenset({408, 425, 429})


@dataclass(frozen=True)
class Answer:
    """Answer is what came of a request: the status (0 where there was no answer), and in words what is wrong."""

    status: int
    problem: str = ""
    # Seconds that the server asks to wait before the next try.
    wait: float = 0.0
    body: bytes = b""

    @property
    def may_pass(self) -> bool:
        """Returns whether the same request may succeed a little later."""
        return self.status == 0 or self.status in _AGAIN or self.status >= 500


def open_session(answer_seconds: float) -> aiohttp.ClientSession:
    """Returns a session for `post`, which waits for each answer to its end, for so long."""
    return aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=answer_seconds),
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
    """Returns the seconds until the next try: twice as long each time, or as long as the server asks for."""
    backoff = min(first * 2.0 ** min(tries, 20), LONGEST_RETRY) * (0.8 + 0.4 * random.random())
    return max(backoff, min(wait, LONGEST_RETRY))


class Complaints:
    """Complaints write to the log what goes wrong, once in LOG_SECONDS."""

    def __init__(self, logger: logging.Logger, about: str) -> None:
        self._logger = logger
        self._about = about
        self._logged_at = float("-inf")

    def say(self, sentence: str, error: Exception | None = None) -> None:
        """Log a sentence, where it is time for one; with the traceback of a mistake of ours."""
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            self._logger.log(
                logging.WARNING if error is None else logging.ERROR, "%s: %s", self._about, sentence, exc_info=error
            )

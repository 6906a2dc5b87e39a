"""aiohttp logs a request that is no HTTP with the text at which it broke, and that may be the header with the token."""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError


class _WithoutRequests(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a line says something else than what a client sent."""
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError)


def server_log() -> logging.Logger:
    """Returns where aiohttp's server writes what goes wrong in it."""
    found = logging.getLogger("trainmaster_operator.serving")
    if not found.filters:
        found.addFilter(_WithoutRequests())
    return found

"""Writes logs as one JSON object a line, or as text for people. Both formats name the job that a line is about.

Messages quote names, the API server's messages and pods' output. This data can't begin a new line or send commands to
the terminal that shows the log. If an HTTP request is invalid, aiohttp logs part of the request, which may contain the
token. Therefore such lines are left out.
"""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from datetime import datetime

from aiohttp.http_exceptions import HttpProcessingError

from trainmaster_operator.api.options import LogFormat
from trainmaster_operator.api.printable import json_line, printable
from trainmaster_operator.api.times import to_text

# The job that the current task works on, as namespace/name, and its attempt.
current_job: ContextVar[str] = ContextVar("current_job", default="")
current_attempt: ContextVar[int] = ContextVar("current_attempt", default=0)


def _is_kept(record: logging.LogRecord) -> bool:
    """Returns whether to keep a line: lines about clients' invalid requests are dropped."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


def server_log() -> logging.Logger:
    """Returns the logger for errors of aiohttp's server."""
    found = logging.getLogger("trainmaster_operator.serving")
    found.addFilter(_is_kept)
    return found


class JsonFormatter(logging.Formatter):
    """Writes lines of JSON with the fields time, level, logger, message, job, attempt and error, for collectors."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": to_text(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if job := current_job.get():
            fields["job"] = job
            fields["attempt"] = current_attempt.get()
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json_line(fields)


class TextFormatter(logging.Formatter):
    """Writes text for a terminal. Further lines of a message, and tracebacks, are indented."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        job = current_job.get()
        message = record.getMessage()
        about = f" {job}:" if job and job not in message else ""
        text = f"{time} {record.levelname[0]}{about} {message}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return printable(text).replace("\n", "\n    ")


def set_up(log_format: LogFormat, level: str) -> None:
    """Send all logs to stderr in this format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # kopf logs each event, and logs each failure's traceback from five tasks. The watcher logs kopf's error once.
    logging.getLogger("kopf").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)

"""Ranks leave exceptions behind, which are read here."""

from __future__ import annotations

import json

from trainmaster_operator.agent.planner.classification import conclusion

MAX_ERROR_FILE_BYTES = 262_144


def read_error_file(path: str) -> str:
    """Returns what torch's error file has (`torch.distributed.elastic.multiprocessing.errors.record`), or ""."""
    try:
        with open(path, "rb") as file:
            message = json.loads(file.read(MAX_ERROR_FILE_BYTES))["message"]
        if isinstance(message, str):
            return conclusion(message)
        text = f"{message['extraInfo']['py_callstack']}\n{message['message']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return conclusion(text)

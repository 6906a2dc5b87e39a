"""Answers are JSON that a browser can parse, whatever stands in objects of others: no NaN, and no endless depth."""

from __future__ import annotations

import json
import math
from typing import Any

from aiohttp import web

# Levels that are kept of what is too deep for the encoder.
MAX_DEPTH = 60


def dumps(value: Any) -> str:
    """Returns JSON in ASCII. What JSON doesn't have becomes null."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError):
        return json.dumps(_plain(value, MAX_DEPTH), separators=(",", ":"), allow_nan=False)


def answer(value: Any, **headers: str) -> web.Response:
    """Returns an answer with that value."""
    return web.json_response(value, dumps=dumps, headers=headers)


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(item, depth - 1) for name, item in value.items()} if depth else None
    if isinstance(value, list | tuple):
        return [_plain(item, depth - 1) for item in value] if depth else None
    return None if isinstance(value, float) and not math.isfinite(value) else value

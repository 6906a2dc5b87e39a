"""Parameters of requests are checked here: names become parts of paths, and numbers have a range."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from trainmaster.client.errors import InvalidRequest
from trainmaster.client.job import require_name, require_namespace
from trainmaster.dashboard.errors import Refused
from trainmaster.dashboard.guards import VIEWER
from trainmaster.dashboard.viewers import Viewer
from trainmaster_operator.api.values import show
from trainmaster_operator.wire.limits import MAX_UID
from trainmaster_operator.wire.values import loads, number

MOST_WHOLE = 10**9


def viewer_of(request: web.Request) -> Viewer:
    """Returns who asks."""
    return request[VIEWER]


def job_of(request: web.Request) -> tuple[str, str]:
    """Returns namespace and name of the job in the path. Raises InvalidRequest."""
    namespace, name = request.match_info["namespace"], request.match_info["name"]
    require_namespace(namespace)
    require_name(name)
    return namespace, name


def namespace_of(request: web.Request) -> str | None:
    """Returns the namespace that is asked for; None for all. Raises InvalidRequest."""
    namespace = request.query.get("namespace") or None
    if namespace is not None:
        require_namespace(namespace)
    return namespace


def uid_of(request: web.Request) -> str | None:
    """Returns which life of a job is asked for; None for the newest. Raises InvalidRequest."""
    uid = request.query.get("uid") or None
    if uid is not None and (len(uid) > MAX_UID or not uid.isascii() or not uid.replace("-", "").isalnum()):
        raise InvalidRequest(f"uid: {show(uid)} is no uid of an object")
    return uid


def whole_of(request: web.Request, name: str, default: int | None, *, most: int = MOST_WHOLE) -> int | None:
    """Returns a whole number from 0 to `most`, or the default where none is given. Raises InvalidRequest."""
    given = request.query.get(name)
    if not given:
        return default
    if not (given.isascii() and given.isdecimal() and len(given) <= 10 and int(given) <= most):
        raise InvalidRequest(f"{name}: {show(given)} is no whole number from 0 to {most}")
    return int(given)


def seconds_of(request: web.Request, name: str) -> float | None:
    """Returns a time in seconds since the epoch; None where none is given. Raises InvalidRequest."""
    given = request.query.get(name)
    if not given:
        return None
    try:
        found = number(float(given[:40]))
    except ValueError:
        found = None
    if found is None:
        raise InvalidRequest(f"{name}: {show(given)} is no time in seconds since the epoch")
    return found


def one_of(request: web.Request, name: str, values: tuple[str, ...]) -> str:
    """Returns one of the values, the first where none is given. Raises InvalidRequest."""
    given = request.query.get(name) or values[0]
    if given not in values:
        raise InvalidRequest(f"{name}: {show(given)} is none of {', '.join(values)}")
    return given


async def body_of(request: web.Request) -> dict[str, Any]:
    """Returns the JSON object of a request. Raises Refused."""
    try:
        found = loads(await request.read())
    except (ValueError, json.JSONDecodeError):
        found = None
    if not isinstance(found, dict):
        raise Refused(400, "The body has to be a JSON object.")
    return found

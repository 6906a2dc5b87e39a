"""Every request passes here first: headers of answers, whose page it comes from, who asks, and errors as sentences.

There are no cookies, so another site's page can't ask in a viewer's name; a proxy in front may log viewers in by a
cookie of its own, so that requests of other origins are refused all the same. On a laptop the Host has to be this
machine's, so that no name of somebody's domain is made to lead here (DNS rebinding).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from trainmaster.client.errors import ClientError, NotKnown
from trainmaster.dashboard.errors import Refused, refused
from trainmaster.dashboard.launch import Launch
from trainmaster.dashboard.viewers import Viewer, Viewers

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
# Of a token; those of identity providers with many groups are the longest.
MOST_TOKEN = 15_000
VIEWER = web.RequestKey("viewer", Viewer)
# Asked without a token.
_OPEN = frozenset({"/api/launch"})

_log = logging.getLogger(__name__)


def guard(viewers: Viewers, launch: Launch | None) -> Middleware:
    """Returns the middleware; with a Launch, that of a laptop."""

    mode = "cluster" if launch is None else "laptop"

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _require_place(request, laptop=launch is not None)
            if request.path.startswith("/api/") and request.path not in _OPEN:
                request[VIEWER] = viewer = await _viewer(request, viewers, launch)
                viewer.count()
            return await handler(request)
        except Refused as error:
            return error.answer(mode)
        except ClientError as error:
            if isinstance(error, NotKnown) and VIEWER in request:
                viewers.end(request[VIEWER])
            return refused(error, laptop=launch is not None).answer(mode)
        except web.HTTPException as error:
            return Refused(error.status, f"{error.reason}: {request.method} {request.path[:200]}").answer(mode)
        except (TimeoutError, OSError):
            # The body didn't come, or the viewer went.
            return Refused(408, "The request didn't come to its end.").answer(mode)
        except Exception:
            _log.exception("A request for %s failed", request.path)
            return Refused(500, "Something went wrong here; the dashboard's log says what.").answer(mode)

    return middleware


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Adds the headers that every answer has."""
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")


def _require_place(request: web.Request, *, laptop: bool) -> None:
    """Raises Refused for a request that another site's page, or another name of this machine, may be behind."""
    host = request.headers.get("Host", "")
    if laptop and _host_of(host) not in LOCAL_HOSTS:
        raise Refused(403, "This dashboard answers at 127.0.0.1, localhost and [::1] only.")
    origin = request.headers.get("Origin")
    if origin is not None and _place_of(origin) != host.lower():
        raise Refused(403, "A page of another origin asks; this one answers its own only.")
    if request.path.startswith("/api/") and request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
        raise Refused(403, "A page of another site asks; this one answers its own only.")
    if request.method == "POST" and request.content_type != "application/json":
        raise Refused(415, "The Content-Type has to be application/json.")


def _place_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _host_of(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


async def _viewer(request: web.Request, viewers: Viewers, launch: Launch | None) -> Viewer:
    """Returns who asks. Raises Refused, ClientError."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise Refused(401, "A bearer token is needed." if launch is None else "Open the page by `kubectl dtj open`.")
    if len(token) > MOST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise Refused(401, "That is no bearer token: it has printable characters without blanks.")
    if launch is None:
        return await viewers.of_token(token)
    if not launch.is_key(token):
        raise Refused(401, "This page was opened by a dashboard that has ended; open it anew by `kubectl dtj open`.")
    return await viewers.myself()

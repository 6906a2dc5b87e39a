"""Checks the origin, viewer and parameters of every request, and sets the headers of answers.

The dashboard uses no cookies, so another site's page can't act in a viewer's name. But a proxy in front of the
dashboard may log viewers in with a cookie, so requests from other origins are refused anyway. On a laptop the Host
header must name this machine. Otherwise an attacker's domain name could lead to the dashboard (DNS rebinding).

On a laptop a key proves that the person who started the dashboard opened the page. The browser gets a code, and
exchanges it for the key once, within a minute. The code follows a `#`, so no request's address contains it. The
browser reads the code from a file that only the user can read (as with Jupyter), so no list of processes shows it.
"""

from __future__ import annotations

import html
import os
import secrets
import tempfile
import time
from dataclasses import dataclass, field
from hmac import compare_digest
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from trainmaster.client.errors import NotKnown
from trainmaster.dashboard.sessions import Viewer, Viewers
from trainmaster.dashboard.streams import UNKNOWN
from trainmaster.serving import Handler, Refused, bearer_of, refused
from trainmaster_operator.wire.values import loads

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
# Maximum characters of a token. Identity providers issue the longest tokens for users with many groups.
MOST_TOKEN = 15_000
CODE_SECONDS = 60.0
# Maximum number of valid codes. Each address for opening the page contains a new code.
MOST_CODES = 8
VIEWER = web.RequestKey("viewer", Viewer)


def guard(viewers: Viewers, launch: Launch | None) -> Middleware:
    """Returns the middleware that checks requests. With a `launch`, it checks them as on a laptop."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _require_place(request, laptop=launch is not None)
            # A browser exchanges its code at /api/launch, before it has a token.
            if request.path.startswith("/api/") and request.path != "/api/launch":
                request[VIEWER] = viewer = await _viewer(request, viewers, launch)
                viewer.count()
            return await handler(request)
        except NotKnown as error:
            if VIEWER in request:
                viewers.end(request[VIEWER])
            # On a laptop, the kubeconfig's credentials have expired, and the viewer can't help by entering a token.
            found = Refused(401, UNKNOWN) if launch is None else Refused(403, str(error))
        except Exception as error:
            found = refused(error, request)
        # After 401 the page asks for a token or, on a laptop, asks the viewer to start the dashboard again.
        mode = {"mode": "cluster" if launch is None else "laptop"} if found.status == 401 else {}
        return web.json_response({"sentence": found.sentence, **mode}, status=found.status, headers=found.headers)

    return middleware


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Adds the headers that every answer has."""
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")


def viewer_of(request: web.Request) -> Viewer:
    """Returns the request's viewer."""
    return request[VIEWER]


async def body_of(request: web.Request) -> dict[str, Any]:
    """Returns the JSON object in a request's body. Raises Refused."""
    try:
        found = loads(await request.read())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Refused(400, "The body has to be a JSON object.")
    return found


@dataclass
class Launch:
    """Launch holds this process's key, and the codes that a browser can exchange for the key."""

    _key: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    _codes: dict[str, float] = field(default_factory=dict, repr=False)

    def new_code(self) -> str:
        """Returns a new code, which the browser can exchange once, within CODE_SECONDS."""
        code = secrets.token_urlsafe(32)
        self._codes[code] = time.monotonic() + CODE_SECONDS
        while len(self._codes) > MOST_CODES:
            del self._codes[next(iter(self._codes))]
        return code

    def exchange(self, given: object) -> str | None:
        """Returns the key for a code; None if the code is unknown, used, or too old."""
        if not isinstance(given, str) or not given.isascii():
            return None
        known = next((code for code in self._codes if compare_digest(code, given)), None)
        if known is None or self._codes.pop(known) < time.monotonic():
            return None
        return self._key

    def is_key(self, given: str) -> bool:
        """Returns whether `given` is the key."""
        return given.isascii() and compare_digest(self._key, given)


def launch_file(address: str) -> Path:
    """Creates, in a new folder, a file that redirects a browser to an address. Only the user can read the file."""
    path, address = Path(tempfile.mkdtemp(prefix="trainmaster-")) / "open.html", html.escape(address, quote=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(
            '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
            f'<meta http-equiv="refresh" content="0;url={address}"><title>Trainmaster</title>'
            f'<a href="{address}">Trainmaster</a>\n'
        )
    return path


def _require_place(request: web.Request, *, laptop: bool) -> None:
    """Raises Refused if another site's page sent the request, its Host isn't this laptop, or a POST isn't JSON."""
    host = request.headers.get("Host", "")
    if laptop and _part_of(f"//{host}", "hostname") not in LOCAL_HOSTS:
        raise Refused(403, "This dashboard answers at 127.0.0.1, localhost and [::1] only.")
    origin = request.headers.get("Origin")
    if origin is not None and _part_of(origin, "netloc") != host.lower():
        raise Refused(403, "The request comes from a page of another origin; only this dashboard's page may ask.")
    if request.path.startswith("/api/") and request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
        raise Refused(403, "The request comes from a page of another site; only this dashboard's page may ask.")
    if request.method == "POST" and request.content_type != "application/json":
        raise Refused(415, "The Content-Type has to be application/json.")


def _part_of(url: str, part: Literal["hostname", "netloc"]) -> str | None:
    try:
        return str(getattr(urlsplit(url), part)).lower()
    except ValueError:
        return None


async def _viewer(request: web.Request, viewers: Viewers, launch: Launch | None) -> Viewer:
    token = bearer_of(request)
    if not token:
        raise Refused(401, "A bearer token is needed." if launch is None else "Open the page with `kubectl dtj open`.")
    if len(token) > MOST_TOKEN or not token.isprintable() or " " in token:
        raise Refused(401, "That is no bearer token: it has printable characters without blanks.")
    if launch is None:
        return await viewers.of_token(token)
    if not launch.is_key(token):
        raise Refused(401, "The dashboard that opened this page has ended; open it again with `kubectl dtj open`.")
    return await viewers.myself()

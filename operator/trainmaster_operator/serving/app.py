"""Makes the application: which bodies it takes, and for how long it waits for one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web
from aiohttp.typedefs import Middleware

from trainmaster_operator.serving.connection import Connection

BODY_SECONDS = 30.0
"""A body that isn't complete by then is given up."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MOST_BODY = web.AppKey("most_body", int)
# Too slow, too large, compressed.
_REFUSED = (408, 413, 415)


def application(*, most_body: int, middlewares: Iterable[Middleware] = ()) -> web.Application:
    """Returns an application that takes bodies of at most `most_body` bytes, uncompressed.

    The given middlewares run around the refusals, which they get as `web.HTTPException` and may word in their own way.
    """
    # aiohttp takes 0 for "no limit".
    app = web.Application(client_max_size=max(1, most_body), middlewares=[*middlewares, _bounded])
    app[MOST_BODY] = most_body
    app.on_response_prepare.append(_finish)
    return app


@web.middleware
async def _bounded(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuses a body that is compressed, too large or too slow."""
    if not request.can_read_body:
        return await handler(request)
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise web.HTTPUnsupportedMediaType(
            reason="Compressed bodies are not accepted", headers={"Accept-Encoding": "identity"}
        )
    most = request.app[MOST_BODY]
    if (request.content_length or 0) > most:
        raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=request.content_length or 0)
    late = web.HTTPRequestTimeout(reason=f"The body was not complete within {BODY_SECONDS:g} s")
    timer = asyncio.get_running_loop().call_later(BODY_SECONDS, _give_up, request, late)
    try:
        return await handler(request)
    finally:
        timer.cancel()


def _give_up(request: web.Request, late: web.HTTPException) -> None:
    if not request.content.is_eof():
        request.content.set_exception(late)


async def _finish(request: web.Request, response: web.StreamResponse) -> None:
    """Closes the connection after an answer that doesn't wait for the body, and names no software."""
    if response.status in _REFUSED or not request.content.is_eof():
        response.force_close()
        response.headers["Connection"] = "close"
    response.headers.pop("Server", None)
    if isinstance(request.protocol, Connection):
        request.protocol.answered(request.content)

"""The operator has two ports: one for the kubelet's probes, one for `/metrics`, which names jobs of all namespaces.

The API server decides who may read /metrics, as in controller-runtime's authentication filter: a TokenReview names the
token's owner, and a SubjectAccessReview decides whether the owner may `get` the non-resource URL `/metrics`. Answers
are cached briefly, by the token's SHA-256. Unknown tokens are reviewed one after the other, and only one from each
address at a time, so invented tokens cost the API server few requests. Known tokens don't wait for these reviews.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from aiohttp import web

from trainmaster_operator.controller.apiserver.cluster import ACCESS_REVIEWS, TOKEN_REVIEWS, Cluster, Resource
from trainmaster_operator.controller.apiserver.errors import ClusterError, Forbidden
from trainmaster_operator.controller.observability.metrics import OperatorMetrics
from trainmaster_operator.serving import Exposition, HttpServer, application
from trainmaster_operator.wire.names import group_of
from trainmaster_operator.wire.values import mapping, text

PATH = "/metrics"
# Seconds for which positive and negative answers are cached, and limits on their number.
ADMITTED_SECONDS, REFUSED_SECONDS = 60.0, 10.0
MAX_ADMITTED, MAX_REFUSED = 64, 1_024
MAX_WAITING = 16
REVIEW_SECONDS = 5.0
# Seconds between the reviews of two unknown tokens.
UNKNOWN_SECONDS = 0.05
MAX_TOKEN = 15_000
_log = logging.getLogger(__name__)


def probes(*, healthy: Callable[[], str | None], ready: Callable[[], str | None]) -> HttpServer:
    """Returns the server of the probes. `healthy` and `ready` return the problem, or None if there is none."""

    async def answer(problem: Callable[[], str | None], _: web.Request) -> web.Response:
        found = problem()
        return web.Response(text=(found or "ok") + "\n", status=503 if found else 200)

    app = application(most_body=0)
    for path, problem in (("/healthz", healthy), ("/readyz", ready)):
        app.router.add_get(path, partial(answer, problem))
    return HttpServer(app)


def exposition(metrics: OperatorMetrics, *, refresh: Callable[[], None], scrapers: Scrapers | None) -> HttpServer:
    """Returns the server of `/metrics`. `scrapers` decides who may read them; if it is None, everybody may."""

    async def make() -> bytes:
        refresh()
        # With 5,000 jobs this takes more than a second. It runs in a thread, because recoveries must not wait for it.
        return await asyncio.to_thread(metrics.text)

    page = Exposition(make)

    async def answer(request: web.Request) -> web.StreamResponse:
        if scrapers is not None:
            try:
                await scrapers.require(request.headers.get("Authorization", ""), group_of(request.remote or "::"))
            except NotAdmitted as error:
                headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
                return web.Response(text=f"{error}\n", status=error.status, headers=headers)
        return await page.answer(request)

    app = application(most_body=0)
    app.router.add_get("/metrics", answer, allow_head=False)
    return HttpServer(app)


class NotAdmitted(Exception):
    """The request is refused, with this HTTP status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Review(NamedTuple):
    refusal: tuple[int, str] | None
    until: float


class Scrapers:
    """Decides who may read the metrics."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster, self._clock = cluster, clock
        self._admitted: OrderedDict[bytes, _Review] = OrderedDict()
        self._refused: OrderedDict[bytes, _Review] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[_Review]] = {}
        # Addresses from which an unknown token is being reviewed, or waits for its review.
        self._waiting: set[str] = set()
        self._turn = asyncio.Lock()

    async def require(self, authorization: str, address: str) -> None:
        """Raises NotAdmitted unless the sender of this header may read the metrics."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN or not token.isascii():
            raise NotAdmitted(401, "Send a token of Kubernetes as 'Authorization: Bearer …' to read the metrics.")
        key = hashlib.sha256(token.encode()).digest()
        found = self._admitted.get(key) or self._refused.get(key)
        if found is None or found.until <= self._clock():
            found = await self._ask_once(key, token, address)
        if found.refusal is not None:
            raise NotAdmitted(*found.refusal)

    async def _ask_once(self, key: bytes, token: str, address: str) -> _Review:
        """Reviews a token once for all simultaneous requests that contain it."""
        asking = self._asking.get(key)
        if asking is None:
            if key in self._admitted:
                asking = asyncio.create_task(self._ask(key, token))
            else:
                if address in self._waiting or len(self._waiting) >= MAX_WAITING:
                    message = "The API server is being asked about other new tokens; try again in a moment."
                    raise NotAdmitted(429, message)
                self._waiting.add(address)
                asking = asyncio.create_task(self._ask_in_turn(key, token, address))
            self._asking[key] = asking
            asking.add_done_callback(lambda _: self._asking.pop(key, None))
        return await asyncio.shield(asking)

    async def _ask_in_turn(self, key: bytes, token: str, address: str) -> _Review:
        try:
            async with self._turn:
                found = await self._ask(key, token)
                await asyncio.sleep(UNKNOWN_SECONDS)
                return found
        finally:
            self._waiting.discard(address)

    async def _ask(self, key: bytes, token: str) -> _Review:
        try:
            async with asyncio.timeout(REVIEW_SECONDS):
                refusal = await self._refusal(token)
        except TimeoutError:
            problem = f"The API server didn't say within {REVIEW_SECONDS:g} s whether you may."
        except Forbidden as error:
            _log.warning("The operator may not ask who reads /metrics (the chart's metrics.requireToken): %s", error)
            problem = "The operator may not ask the API server about tokens; its log names the right."
        except ClusterError as error:
            problem = f"The API server can't be asked whether you may: {error}"
        else:
            known, other, seconds, most = self._admitted, self._refused, ADMITTED_SECONDS, MAX_ADMITTED
            if refusal is not None:
                known, other, seconds, most = self._refused, self._admitted, REFUSED_SECONDS, MAX_REFUSED
            other.pop(key, None)
            known[key] = answer = _Review(refusal, self._clock() + seconds)
            known.move_to_end(key)
            if len(known) > most:
                known.popitem(last=False)
            return answer
        # This answer isn't cached.
        return _Review((503, problem), 0.0)

    async def _refusal(self, token: str) -> tuple[int, str] | None:
        who = await self._review(TOKEN_REVIEWS, {"token": token})
        user = mapping(who.get("user"))
        if who.get("authenticated") is not True:
            return 401, "The API server doesn't know this token."
        spec = {name: user[name] for name in ("uid", "groups", "extra") if user.get(name)}
        name = text(user.get("username"), None)
        asked = {"nonResourceAttributes": {"path": PATH, "verb": "get"}, "user": name, **spec}
        answer = await self._review(ACCESS_REVIEWS, asked)
        if answer.get("allowed") is True:
            return None
        return 403, f"{name} may not get {PATH}: a ClusterRole with the nonResourceURL {PATH} has to allow it."

    async def _review(self, resource: Resource, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        return mapping((await self._cluster.create(resource, "", resource.body(spec=spec))).get("status"))

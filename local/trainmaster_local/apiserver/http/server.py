"""Serves the API over HTTP: Kubernetes' REST protocol, by aiohttp, on plain HTTP with bearer tokens.

    server = ApiServer(api, authenticator=StaticTokens({token: admin}), authorizer=rbac)
    url = await server.start("127.0.0.1", 0)

This module routes requests, checks permissions and applies `faults`. `verbs` answers requests about resources, from the
`Api`; `discovery.endpoints` answers the rest (discovery, OpenAPI, health).
"""

from __future__ import annotations

import asyncio
import logging
import ssl

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.web_protocol import RequestHandler

from trainmaster_local.apiserver.api import Api
from trainmaster_local.apiserver.apimachinery import errors
from trainmaster_local.apiserver.apimachinery.errors import ApiError
from trainmaster_local.apiserver.discovery.endpoints import Descriptions, page_not_found
from trainmaster_local.apiserver.http import routes
from trainmaster_local.apiserver.http.access import Access
from trainmaster_local.apiserver.http.answers import error_response
from trainmaster_local.apiserver.http.auth import Attributes, Authenticator, Authorizer
from trainmaster_local.apiserver.http.faults import Fault, Faults
from trainmaster_local.apiserver.http.routes import Route
from trainmaster_local.apiserver.http.verbs import Call, Verbs
from trainmaster_local.apiserver.resources import ResourceType, User

logger = logging.getLogger(__name__)

_BODY_LIMIT = 3 * 1024 * 1024
_HEADER_LIMIT = 64 * 1024
_PUBLIC = ("/healthz", "/livez", "/readyz", "/version")


class ApiServer:
    """The server offers an `Api` to the users that `authenticator` knows and `authorizer` permits (see `Access`)."""

    def __init__(
        self,
        api: Api,
        *,
        authenticator: Authenticator | None = None,
        authorizer: Authorizer | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.api = api
        self.faults = faults or Faults()
        self._descriptions = Descriptions(api.registry)
        self._access = Access(authenticator, authorizer)
        self._runner: web.ServerRunner | None = None
        self._verbs = Verbs(api)
        self.address = ""

    async def start(self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> str:
        """Listens, and returns the server's URL. Port 0 is any free one. Without `tls` client-go sends no tokens."""
        server = web.Server(
            self._handle,
            request_factory=_request,
            handler_cancellation=True,
            max_line_size=_HEADER_LIMIT,
            max_field_size=_HEADER_LIMIT,
        )
        self._runner = web.ServerRunner(server, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=tls)
        await site.start()
        bound = self._runner.addresses[0]
        self.address = f"{bound[0]}:{bound[1]}"
        return f"{'https' if tls else 'http'}://{self.address}"

    def drop_watches(self) -> None:
        """Ends every open watch, as a server does that restarts or sheds load."""
        self._verbs.drop_watches()

    async def stop(self) -> None:
        """Ends all watches and stops listening."""
        self.drop_watches()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except ApiError as error:
            return error_response(error)
        except web.HTTPRequestEntityTooLarge:
            problem = f"Request entity too large: limit is {_BODY_LIMIT}"
            return error_response(ApiError(413, "RequestEntityTooLarge", problem))
        except ConnectionError:
            # The client is gone, so it needs no answer. Nothing is raised, because aiohttp would log it.
            return web.Response(status=499)
        except Exception as error:
            logger.exception("%s %s failed", request.method, request.path)
            return error_response(errors.internal(str(error)))

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        user = self._access.authenticate(request)
        query = dict(request.query)
        route = routes.parse(request.method, path, query)
        if route is None:
            return await self._other(request, path, user)
        type_ = self.api.registry.find(route.group, route.version, route.resource)
        self._access.authorize(user, route)
        if type_ is None:
            if (route.group, route.version) not in {(t.group, t.version) for t in self.api.registry}:
                return page_not_found()
            raise errors.no_such_resource()
        call = Call(request, type_, route, user, query)
        fault = await self._disturb(type_, route)
        if fault is not None and fault.after:
            await self._verbs.answer(call, None)
            self.faults.carried_out()
            raise fault.error(type_.qualified, route.name) or errors.internal("etcdserver: request timed out")
        return await self._verbs.answer(call, fault)

    async def _disturb(self, type_: ResourceType, route: Route) -> Fault | None:
        """Carries out a fault: waits, answers in place of the server, or returns the fault that must act later."""
        if self.faults.idle:
            return None
        resource = type_.qualified + (f"/{route.subresource}" if route.subresource else "")
        fault = self.faults.match(route.verb, resource, route.name, route.namespace)
        if fault is None:
            return None
        if fault.latency:
            await asyncio.sleep(fault.latency)
        if fault.after or (route.verb == "watch" and fault.code == 410):
            return fault
        error = fault.error(type_.qualified, route.name)
        if error is not None:
            raise error
        return fault

    async def _other(self, request: web.BaseRequest, path: str, user: User) -> web.StreamResponse:
        """Answers requests that aren't about a resource: discovery, OpenAPI, health, version."""
        if not path.startswith(_PUBLIC):
            self._access.permit(Attributes(user, request.method.lower(), path=path))
        if request.method != "GET" or self.faults.hides(path):
            return page_not_found()
        return self._descriptions.answer(path, request.headers.get("Accept", ""), self.address)


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    """Returns a request whose body may be as large as kube-apiserver allows."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=_BODY_LIMIT)

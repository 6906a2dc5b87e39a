"""The node serves `pods/log` and `pods/proxy`, and refuses exec, attach and port-forward with a message.

The cluster attaches these subresources to the API server's registry. As in kube-apiserver, the proxy forwards a request
to the pod's address without the caller's Authorization, and streams both bodies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp
from aiohttp import web

from trainmaster_local.apiserver.apimachinery.errors import ApiError, bad_request, not_found
from trainmaster_local.apiserver.resources import Registry, Subresource, SubresourceCall
from trainmaster_local.kubelet.containers.logs import LogOptions, read_logs
from trainmaster_local.kubelet.node import Kubelet

Object = Mapping[str, Any]

# These headers belong to one connection (RFC 9110, 7.6.1), or are for the API server alone.
_NOT_PASSED = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "authorization",
        "content-length",
        "expect",
    ]
)


class NodeServer:
    """This server answers for all nodes of the cluster. `kubelets` (by node name) may change later."""

    def __init__(self, kubelets: Mapping[str, Kubelet]) -> None:
        self._kubelets = kubelets
        self._session: aiohttp.ClientSession | None = None

    def attach(self, registry: Registry) -> None:
        """Adds the subresources to `pods`."""
        proxied = ("create", "delete", "get", "patch", "update")
        for subresource in (
            Subresource("log", "Pod", version="v1", verbs=("get",), connect=self.log),
            Subresource("proxy", "PodProxyOptions", version="v1", verbs=proxied, connect=self.proxy),
            Subresource("exec", "PodExecOptions", version="v1", verbs=("create", "get"), connect=_refuse("exec")),
            Subresource("attach", "PodAttachOptions", version="v1", verbs=("create", "get"), connect=_refuse("attach")),
            Subresource(
                "portforward",
                "PodPortForwardOptions",
                version="v1",
                verbs=("create", "get"),
                connect=_refuse("port-forward", "; every pod's address can be reached from this machine"),
            ),
        ):
            registry.attach("pods", subresource)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def log(self, call: SubresourceCall, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Answers `GET pods/<name>/log` (`pkg/registry/core/pod/strategy.go:LogLocation`, `pkg/kubelet/server`)."""
        pod = _pod(call, call.name)
        try:
            options = LogOptions.from_query(call.query, time.time())
        except ValueError as error:
            raise ApiError(422, "Invalid", f'PodLogOptions "{call.name}" is invalid: {error}') from error
        container = _container(pod, call.query.get("container", ""))
        node = pod["spec"].get("nodeName")
        if not node:
            # No container has run yet; kube-apiserver answers with nothing.
            return web.Response(status=204)
        kubelet = self._kubelets.get(node)
        if kubelet is None:
            raise ApiError(500, "", f"Get logs: node {node} isn't part of this process")
        previous = call.query.get("previous", "").lower() in ("true", "1")
        run = _run(pod, container, previous)
        if previous and (gone := collected(_status(pod, container))):
            # The kubelet notices the problem only after it has begun its answer (server.go:getContainerLogs).
            return web.Response(text=f"unable to retrieve container logs for {gone}", content_type="text/plain")
        file = kubelet.log_path(pod, container, run)

        def running() -> bool:
            current = kubelet.newest(pod)
            if current is None:
                return False
            status = _status(current, container)
            return int(status.get("restartCount") or 0) == run and "running" in (status.get("state") or {})

        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        async for chunk in read_logs(file, options, running):
            await response.write(chunk)
        await response.write_eof()
        return response

    async def proxy(self, call: SubresourceCall, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Answers `pods/[scheme:]<name>[:port]/proxy/<path>` (`pkg/registry/core/pod/strategy.go:ResourceLocation`)."""
        scheme, name, port = _proxy_name(call.name)
        pod = _pod(call, name)
        address = (pod.get("status") or {}).get("podIP")
        if not address:
            raise ApiError(500, "InternalError", f"Internal error occurred: address not allowed: pod {name} has none")
        target = f"{scheme}://{address}:{_port(pod, port)}/{path.lstrip('/')}"
        if request.query_string:
            target += f"?{request.query_string}"
        headers = [(key, value) for key, value in request.headers.items() if key.lower() not in _NOT_PASSED]
        headers.append(("X-Forwarded-For", request.remote or "127.0.0.1"))
        if request.content_length is not None:
            # Go's reverse proxy keeps a known length, and uses chunks only for an unknown one.
            headers.append(("Content-Length", str(request.content_length)))
        if self._session is None:
            # There are no limits: a stream may last for days, and the agents handle silence. Connections are pooled for
            # all callers, as in kube-apiserver (apimachinery, util/net/http.go: 90 s).
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=90),
                auto_decompress=False,
            )
        body = request.content if request.can_read_body else None
        try:
            async with self._session.request(
                request.method, target, headers=headers, data=body, allow_redirects=False, ssl=False
            ) as answer:
                return await _pass_back(request, answer)
        except aiohttp.ClientConnectorError as error:
            reason = error.os_error.strerror or str(error.os_error)
            detail = f"dial tcp {address}:{_port(pod, port)}: connect: {reason.lower()}"
            message = f"error trying to reach service: {detail}"
            raise ApiError(503, "ServiceUnavailable", message) from error
        except aiohttp.ClientError as error:
            # Kubernetes uses Go's words for this error, such as "EOF" (`apimachinery/pkg/util/proxy/transport.go`).
            raise ApiError(503, "ServiceUnavailable", f"error trying to reach service: {error}") from error


async def _pass_back(request: web.BaseRequest, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, reason=answer.reason)
    for key, value in answer.headers.items():
        if key.lower() not in _NOT_PASSED:
            response.headers.add(key, value)
    await response.prepare(request)
    transport = request.transport
    try:
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
            if transport is None or transport.is_closing():
                return response
        await response.write_eof()
    except (aiohttp.ClientPayloadError, ConnectionResetError):
        # If one side leaves midway, the other sees its connection end.
        if transport is not None:
            transport.abort()
    return response


def _refuse(
    what: str, hint: str = ""
) -> Callable[[SubresourceCall, web.BaseRequest, str], Awaitable[web.StreamResponse]]:
    async def refuse(call: SubresourceCall, request: web.BaseRequest, path: str) -> web.StreamResponse:
        await asyncio.sleep(0)
        raise ApiError(501, "NotImplemented", f"{what} isn't part of a local cluster: pods are processes{hint}")

    return refuse


def _pod(call: SubresourceCall, name: str) -> Object:
    pod = call.api.peek("pods", name, call.namespace)
    if pod is None:
        raise not_found("", "pods", name)
    return pod


def _container(pod: Object, asked: str) -> str:
    """Returns the requested container. Raises 400 with kube-apiserver's message if the request is ambiguous."""
    name = pod["metadata"]["name"]
    apps = [container["name"] for container in pod["spec"]["containers"]]
    inits = [container["name"] for container in pod["spec"].get("initContainers") or []]
    if asked:
        if asked not in apps + inits:
            raise bad_request(f"container {asked} is not valid for pod {name}")
        return asked
    if len(apps) == 1:
        return str(apps[0])
    choices = f"choose one of: [{' '.join(apps)}]"
    if inits:
        choices += f" or one of the init containers: [{' '.join(inits)}]"
    raise bad_request(f"a container name must be specified for pod {name}, {choices}")


def _status(pod: Object, container: str) -> Object:
    status = pod.get("status") or {}
    for key in ("containerStatuses", "initContainerStatuses"):
        for entry in status.get(key) or []:
            if entry["name"] == container:
                return dict(entry)
    return {}


def _run(pod: Object, container: str, previous: bool) -> int:
    """Returns the number of the run for the requested log (`kubelet_pods.go:validateContainerLogStatus`)."""
    name = pod["metadata"]["name"]
    status = _status(pod, container)
    state, last = status.get("state") or {}, status.get("lastState") or {}
    count = int(status.get("restartCount") or 0)
    if previous:
        if not last.get("terminated"):
            raise bad_request(f'previous terminated container "{container}" in pod "{name}" not found')
        return count if "waiting" in state else count - 1
    if "running" in state or "terminated" in state or last.get("terminated"):
        return count
    reason = (state.get("waiting") or {}).get("reason", "")
    if reason in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName"):
        problem = "trying and failing to pull image" if reason != "InvalidImageName" else "image can't be pulled"
        raise bad_request(f'container "{container}" in pod "{name}" is waiting to start: {problem}')
    raise bad_request(f'container "{container}" in pod "{name}" is waiting to start: {reason or "ContainerCreating"}')


def collected(status: Object) -> str | None:
    """Returns the container before the last one, which the kubelet removes once the last one has ended.

    The kubelet keeps only the newest dead one of each container (kubelet.go:cleanUpContainersInPod).
    """
    if "terminated" not in (status.get("state") or {}):
        return None
    before = (status.get("lastState") or {}).get("terminated") or {}
    return str(before.get("containerID") or "") or None


def _proxy_name(text: str) -> tuple[str, str, str]:
    """Parses `[scheme:]name[:port]` (`k8s.io/apimachinery/pkg/util/net/port_split.go`)."""
    parts = text.split(":")
    if len(parts) == 3 and parts[0] in ("http", "https", ""):
        return parts[0] or "http", parts[1], parts[2]
    if len(parts) == 2:
        return "http", parts[0], parts[1]
    if len(parts) == 1:
        return "http", parts[0], ""
    raise bad_request(f'invalid pod request "{text}"')


def _port(pod: Object, asked: str) -> int:
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports") or []]
    if not asked:
        return int(ports[0]["containerPort"]) if ports else 80
    for port in ports:
        if port.get("name") == asked:
            return int(port["containerPort"])
    if not asked.isdigit():
        raise bad_request(f'no port "{asked}" found for pod {pod["metadata"]["name"]}')
    return int(asked)

"""Runs the liveness, readiness and startup probes of one container (`pkg/kubelet/prober`).

A task per probe runs it every `periodSeconds` and reports to the pod's worker when enough results in a row were equal.
Liveness and readiness probes begin at once, or, if the container has a startup probe, when that succeeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from trainmaster_local.kubelet.containers.backoff import go_duration

Object = Mapping[str, Any]

READINESS, LIVENESS, STARTUP = "Readiness", "Liveness", "Startup"


@dataclass(frozen=True)
class ProbeResult:
    healthy: bool
    output: str = ""


@dataclass(frozen=True)
class Target:
    """The target of probes is the pod's address, ports by name, and a way to run a command in the container."""

    address: str
    ports: Mapping[str, int]
    execute: Callable[[Sequence[str], float], Awaitable[tuple[int | None, str]]]
    """`(command, timeout in seconds) -> (exit code, or None after the timeout; output)`."""

    def port(self, value: Any) -> int:
        return self.ports[value] if isinstance(value, str) and value in self.ports else int(value)


async def check(probe: Object, target: Target) -> ProbeResult:
    """Runs a probe once."""
    timeout = float(probe.get("timeoutSeconds") or 1)
    if "exec" in probe:
        command = probe["exec"]["command"]
        code, output = await target.execute(command, timeout)
        if code is None:
            words = " ".join(command)
            return ProbeResult(False, f'command timed out: "{words}" timed out after {go_duration(timeout)}')
        return ProbeResult(code == 0, output)
    return await _http(probe["httpGet"], target, timeout)


async def _http(action: Object, target: Target, timeout: float) -> ProbeResult:
    host = action.get("host") or target.address
    scheme = str(action.get("scheme") or "HTTP").lower()
    path = str(action.get("path") or "/")
    url = f"{scheme}://{host}:{target.port(action['port'])}{path if path.startswith('/') else '/' + path}"
    headers = {header["name"]: header["value"] for header in action.get("httpHeaders") or []}
    headers.setdefault("User-Agent", "kube-probe/1.36")
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout)) as session,
            session.get(url, headers=headers, ssl=False, allow_redirects=False) as response,
        ):
            if 200 <= response.status < 400:
                return ProbeResult(True)
            return ProbeResult(False, f"HTTP probe failed with statuscode: {response.status}")
    except TimeoutError:
        problem = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        return ProbeResult(False, f'Get "{url}": {problem}')
    except aiohttp.ClientConnectorError as error:
        reason = error.os_error.strerror or str(error.os_error)
        address = f"{host}:{target.port(action['port'])}"
        return ProbeResult(False, f'Get "{url}": dial tcp {address}: connect: {reason.lower()}')
    except aiohttp.ClientError as error:
        return ProbeResult(False, f'Get "{url}": {error}')


@dataclass(frozen=True)
class Verdicts:
    """Verdicts are the functions by which a probe's outcome acts on its container."""

    ready: Callable[[bool], None]
    started: Callable[[], None]
    unhealthy: Callable[[str, Object], None]
    """A liveness or startup probe gave up: `(kind, probe)`; the container is killed."""
    event: Callable[[str], None]
    """A failed probe is recorded as the event Unhealthy."""


class Prober:
    """The prober runs the probes of one run of a container, from its start until `stop`."""

    def __init__(self, container: Object, target: Target, verdicts: Verdicts) -> None:
        self._container = container
        self._target = target
        self._verdicts = verdicts
        self._started = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        startup = self._container.get("startupProbe")
        if startup:
            self._tasks.append(asyncio.create_task(self._run(STARTUP, startup)))
        else:
            self._started.set()
        for kind, key in ((LIVENESS, "livenessProbe"), (READINESS, "readinessProbe")):
            if self._container.get(key):
                self._tasks.append(asyncio.create_task(self._run(kind, self._container[key])))

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _run(self, kind: str, probe: Object) -> None:
        if kind != STARTUP:
            await self._started.wait()
        await asyncio.sleep(float(probe.get("initialDelaySeconds") or 0))
        period = float(probe.get("periodSeconds") or 10)
        failures_needed = int(probe.get("failureThreshold") or 3)
        successes_needed = int(probe.get("successThreshold") or 1)
        loop = asyncio.get_running_loop()
        run, last = 0, False
        while True:
            began = loop.time()
            result = await check(probe, self._target)
            run = run + 1 if result.healthy == last else 1
            last = result.healthy
            if not result.healthy:
                self._verdicts.event(f"{kind} probe failed: {result.output}")
            if result.healthy and run == successes_needed and self._passed(kind):
                return
            if not result.healthy and run == failures_needed:
                if kind == READINESS:
                    self._verdicts.ready(False)
                else:
                    self._verdicts.unhealthy(kind, probe)
                    return
            await asyncio.sleep(max(0.0, began + period - loop.time()))

    def _passed(self, kind: str) -> bool:
        """Reports a success. Returns whether the probe is done."""
        if kind == READINESS:
            self._verdicts.ready(True)
        elif kind == STARTUP:
            self._started.set()
            self._verdicts.started()
            return True
        return False

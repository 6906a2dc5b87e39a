"""Fakes containers without processes, so that thousands of pods run in a test.

A pod is faked if it has the annotation `trainmaster-local/fake`, or if the node fakes all of its pods. The annotation's
value is JSON and scripts the containers' end; an empty value runs until the pod is deleted::

    {"exitCode": 1, "afterSeconds": 2.5, "message": "…termination message…", "reason": "OOMKilled"}

Patching the annotation of a running pod replaces the script of its end: `afterSeconds` then counts from the patch. A
container that is restarted by its restart policy runs the newest script again, unless the script contains `"once":
true`.

A test may also control the program itself: `on_start` is called with each container that starts, and `end` ends it.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from trainmaster_local.kubelet.containers.runtime import SIGKILL, SIGTERM, Container, ContainerConfig, Exit

ANNOTATION = "trainmaster-local/fake"
_FIELDS = {"exitCode", "afterSeconds", "message", "reason", "once"}


class FakeRuntime:
    """This `Runtime` uses timers instead of processes."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[Container, str]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._scripts: dict[str, Mapping[str, Any]] = {}
        self._runs: dict[tuple[str, str], int] = {}
        self.on_start: Callable[[ContainerConfig, Container], None] | None = None

    async def start(self, config: ContainerConfig) -> Container:
        container = Container(uuid.uuid4().hex + uuid.uuid4().hex, time.time())
        self._running[container.id] = (container, config.pod_uid)
        key = (config.pod_uid, config.name)
        self._runs[key] = self._runs.get(key, 0) + 1
        script = self._scripts.get(config.pod_uid)
        if script and not (script.get("once") and self._runs[key] > 1):
            self._schedule(container, script)
        if self.on_start is not None:
            self.on_start(config, container)
        return container

    def end(self, container: Container, exit_: Exit) -> None:
        """Ends the program as if it had ended by itself."""
        self._end(container, exit_)

    def script(self, pod_uid: str, text: str | None) -> str:
        """Sets the script of a pod's annotation, also for running containers. Returns its error, or an empty text."""
        if not text:
            self._scripts.pop(pod_uid, None)
            return ""
        try:
            script = json.loads(text)
        except json.JSONDecodeError as error:
            return f'annotation {ANNOTATION}: {text!r} is not JSON ({error}): give an object such as {{"exitCode": 1}}'
        if not isinstance(script, dict) or set(script) - _FIELDS:
            return f"annotation {ANNOTATION}: {text!r} may only have the fields {', '.join(sorted(_FIELDS))}"
        if script == self._scripts.get(pod_uid):
            return ""
        self._scripts[pod_uid] = script
        for container, uid in list(self._running.values()):
            if uid == pod_uid:
                self._schedule(container, script)
        return ""

    def forget(self, pod_uid: str) -> None:
        """Drops the data of a deleted pod."""
        self._scripts.pop(pod_uid, None)
        for key in [key for key in self._runs if key[0] == pod_uid]:
            del self._runs[key]

    def signal(self, container: Container, number: int) -> None:
        if number in (SIGTERM, SIGKILL):
            # A faked program ends at once on a signal, like one that handles SIGTERM.
            self._end(container, Exit(0 if number == SIGTERM else 137, time.time(), signal=number))

    async def close(self) -> None:
        for container, _ in list(self._running.values()):
            self._end(container, Exit(137, time.time(), signal=SIGKILL))

    def _schedule(self, container: Container, script: Mapping[str, Any]) -> None:
        old = self._timers.pop(container.id, None)
        if old:
            old.cancel()
        if "exitCode" not in script:
            return

        def end() -> None:
            code = int(script["exitCode"])
            killed = script.get("reason") == "OOMKilled"
            self._end(
                container, Exit(code, time.time(), out_of_memory=killed, message=str(script.get("message") or ""))
            )

        delay = float(script.get("afterSeconds") or 0)
        self._timers[container.id] = asyncio.get_running_loop().call_later(delay, end)

    def _end(self, container: Container, exit_: Exit) -> None:
        self._running.pop(container.id, None)
        timer = self._timers.pop(container.id, None)
        if timer:
            timer.cancel()
        if not container.exited.done():
            container.exited.set_result(exit_)

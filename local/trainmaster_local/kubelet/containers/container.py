"""Runs one container of a pod: its starts, its ends, and the waits in between.

`try_start` makes one attempt and leaves the container running or waiting with a reason; `collect` handles an end. The
order of events and states is that of `kuberuntime_manager.go` and `kuberuntime_container.go`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainmaster_local.images import ImageNotFound, InvalidImageName
from trainmaster_local.kubelet.containers.backoff import Backoff, go_duration
from trainmaster_local.kubelet.containers.environment import ConfigError
from trainmaster_local.kubelet.containers.launch import Launch, prepare
from trainmaster_local.kubelet.containers.logs import last_lines
from trainmaster_local.kubelet.containers.probes import Prober
from trainmaster_local.kubelet.containers.runtime import (
    SIGKILL,
    SIGTERM,
    Container,
    ContainerConfig,
    Exit,
    Runtime,
    StartError,
)
from trainmaster_local.kubelet.host import PodHost
from trainmaster_local.kubelet.status import ContainerView, Running, Terminated, Waiting
from trainmaster_local.kubelet.volumes import PodVolumes

Object = Mapping[str, Any]

MESSAGE_BYTES = 4096  # MaxContainerTerminationMessageLength
OCI_PREFIX = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
    "runc create failed: unable to start container process: "
)


class ContainerRun:
    """This is a container over all its runs. Times are seconds on the wall clock."""

    def __init__(
        self, host: PodHost, runtime: Runtime, spec: Object, init: bool, wake: Callable[[], None], waiting: str
    ) -> None:
        self._host = host
        self._runtime = runtime
        self._wake = wake
        self.view = ContainerView(spec=spec, state=Waiting(waiting), init=init)
        self.running: Container | None = None
        self.launch: Launch | None = None
        self.prober: Prober | None = None
        self.killing: asyncio.Task[None] | None = None
        self._backoff = Backoff(host.timings.backoff_scale)
        self._image_backoff = Backoff(host.timings.backoff_scale)
        self._image_failed_at = 0.0
        self._retry_at = 0.0
        self._created = 0
        self.backed_off = False

    @property
    def spec(self) -> Object:
        return self.view.spec

    def wait_before_start(self, pod: Object, now: float) -> float:
        """Returns the seconds until the next attempt is due. Records the back-off's event as the kubelet does."""
        if now < self._retry_at:
            return self._retry_at - now
        finished = self.view.finished
        if finished is None:
            return 0.0
        remaining = self._backoff.remaining(finished.finished_at, now)
        if remaining <= 0:
            return 0.0
        self._report_backoff(pod)
        shown_at = finished.finished_at + self._host.timings.waiting_shown_after * self._host.timings.backoff_scale
        if now < shown_at and shown_at - now < remaining:
            return shown_at - now
        self.show_backoff(pod)
        return remaining

    def show_backoff(self, pod: Object) -> None:
        """Sets the state to CrashLoopBackOff."""
        finished = self.view.finished
        if (isinstance(self.view.state, Waiting) and self.view.state.reason == "CrashLoopBackOff") or finished is None:
            return
        duration = go_duration(self._backoff.seconds)
        message = f"back-off {duration} restarting failed container={self.view.name} pod={pod_name(pod)}"
        self.view.last = finished
        self.view.state = Waiting("CrashLoopBackOff", message)

    def _report_backoff(self, pod: Object) -> None:
        if not self.backed_off:
            self.backed_off = True
            message = f"Back-off restarting failed container {self.view.name} in pod {pod_name(pod)}"
            self._event(pod, "Warning", "BackOff", message)

    async def try_start(self, pod: Object, volumes: PodVolumes, pod_ip: str) -> None:
        """Tries once to start the container. Afterwards it runs, or its state names the reason for waiting."""
        now = time.time()
        finished = self.view.finished
        image_name = str(self.spec.get("image", ""))
        retry = self._host.timings.retry_seconds * self._host.timings.backoff_scale
        try:
            image = self._host.images.find(image_name)
        except InvalidImageName as error:
            self._event(pod, "Warning", "InspectFailed", str(error))
            self._event(pod, "Warning", "Failed", "Error: InvalidImageName")
            self._wait(Waiting("InvalidImageName", str(error)), now + retry)
            return
        except ImageNotFound as error:
            self._pull_failed(pod, image_name, str(error), now)
            return
        present = f'Container image "{image_name}" already present on machine and can be accessed by the pod'
        self._event(pod, "Normal", "Pulled", present)
        number = self._created
        try:
            self.launch = await asyncio.to_thread(prepare, self._host, pod, self.spec, image, volumes, pod_ip, number)
        except ConfigError as error:
            self._event(pod, "Warning", "Failed", f"Error: {error}")
            self._wait(Waiting("CreateContainerConfigError", str(error)), now + retry)
            return
        self._event(pod, "Normal", "Created", "Container created")
        if finished is not None:
            self._backoff.next(finished.finished_at, now)
            self.view.last = finished
        self.backed_off = False
        self._created += 1
        self.view.restart_count = number
        if number >= 2:
            self._host.log_path(pod, self.view.name, number - 2).unlink(missing_ok=True)
        try:
            container = await self._runtime.start(self.launch.config)
        except StartError as error:
            self._start_failed(pod, f"{OCI_PREFIX}{error}")
            return
        self._event(pod, "Normal", "Started", "Container started")
        self._started(container)

    async def start_bare(self, config: ContainerConfig) -> None:
        """Starts a faked container, without an image, files or events."""
        finished = self.view.finished
        if finished is not None:
            self._backoff.next(finished.finished_at, time.time())
            self.view.last = finished
        self.view.restart_count = self._created
        self._created += 1
        self._started(await self._runtime.start(config))

    def _started(self, container: Container) -> None:
        self.running = container
        container.exited.add_done_callback(lambda _: self._wake())
        self.view.container_id = container.id
        self.view.state = Running(container.started_at, container.id)
        self.view.started = not self.spec.get("startupProbe")
        self.view.ready = not self.view.init and self.view.started and not self.spec.get("readinessProbe")
        if self.view.sidecar:
            self.view.ready = self.view.started and not self.spec.get("readinessProbe")

    def _wait(self, state: Waiting, until: float) -> None:
        if self.view.finished is not None:
            self.view.last = self.view.finished
        self.view.state = state
        self._retry_at = until

    def _pull_failed(self, pod: Object, image: str, problem: str, now: float) -> None:
        remaining = self._image_backoff.remaining(self._image_failed_at, now) if self._image_failed_at else 0.0
        if remaining > 0:
            self._event(pod, "Normal", "BackOff", f'Back-off pulling image "{image}"')
            self._event(pod, "Warning", "Failed", "Error: ImagePullBackOff")
            message = f'Back-off pulling image "{image}": ErrImagePull: {problem}'
            self._wait(Waiting("ImagePullBackOff", message), now + remaining)
            return
        self._event(pod, "Normal", "Pulling", f'Pulling image "{image}"')
        self._event(pod, "Warning", "Failed", f'Failed to pull image "{image}": {problem}')
        self._event(pod, "Warning", "Failed", "Error: ErrImagePull")
        self._image_backoff.next(now, now)
        self._image_failed_at = now
        shown = self._host.timings.waiting_shown_after * self._host.timings.backoff_scale
        self._wait(Waiting("ErrImagePull", problem), now + shown)

    def _start_failed(self, pod: Object, problem: str) -> None:
        self._event(pod, "Warning", "Failed", f"Error: {problem}")
        # A container that was created but never ran has an id, and no start time.
        identity = f"{self._created:064x}"
        self.view.container_id = identity
        self.view.last = Terminated(128, "StartError", time.time(), message=problem, container_id=identity)
        self.view.state = Waiting("RunContainerError", problem)
        self.view.ready = self.view.started = False

    def collect(self) -> Terminated | None:
        """Handles the end of the running container, once it has ended."""
        if self.running is None or not self.running.exited.done():
            return None
        ended = self.running.exited.result()
        if self.prober:
            self.prober.stop()
            self.prober = None
        if self.killing:
            self.killing.cancel()
            self.killing = None
        reason = "OOMKilled" if ended.out_of_memory else "Completed" if ended.code == 0 else "Error"
        state = Terminated(
            exit_code=ended.code,
            reason=reason,
            finished_at=ended.at,
            started_at=self.running.started_at,
            message=self._message(ended),
            container_id=self.running.id,
        )
        self.running = None
        self.view.state = state
        self.view.ready = self.view.init and not self.view.sidecar and ended.code == 0
        self.view.started = False
        return state

    def signal(self, number: int) -> None:
        """Sends a signal if the container runs."""
        if self.running is not None:
            self._runtime.signal(self.running, number)

    async def ask_to_stop(self, pod: Object, seconds: float) -> None:
        """Runs the preStop hook for at most `seconds`, and then sends SIGTERM."""
        await self.run_hook(pod, "preStop", seconds)
        self.signal(SIGTERM)

    def kill(self, pod: Object, grace: float) -> None:
        """Begins to end the container within `grace` seconds; the pod's restart policy decides whether it restarts."""
        self.killing = asyncio.create_task(self._kill(pod, grace))

    async def _kill(self, pod: Object, grace: float) -> None:
        container = self.running
        if container is None:
            return
        began = time.monotonic()
        await self.ask_to_stop(pod, grace)
        # However long the hook took, the program gets some time to obey SIGTERM.
        remaining = max(began + grace - time.monotonic(), self._host.timings.minimum_grace_seconds)
        await asyncio.wait([container.exited], timeout=remaining)
        if not container.exited.done():
            self._runtime.signal(container, SIGKILL)

    def announce_stop(self, pod: Object) -> None:
        """Ends probing as the pod stops, and records an event. A faked container stops without an event."""
        if self.prober:
            self.prober.stop()
            self.prober = None
        if self.launch is not None:
            self._event(pod, "Normal", "Killing", f"Stopping container {self.view.name}")

    async def execute(self, command: Sequence[str], seconds: float) -> tuple[int | None, str]:
        """Runs a command as if inside the container. The exit code is None if it was killed after `seconds`."""
        if self.launch is None:
            return 1, "container not running"
        argv = [self.launch.paths.rewrite(str(word)) for word in command]
        config = ContainerConfig(argv, self.launch.config.env, self.launch.config.cwd)
        try:
            started = await self._runtime.start(config)
        except StartError as error:
            return 126, f"OCI runtime exec failed: exec failed: unable to start container process: {error}"
        try:
            async with asyncio.timeout(seconds):
                ended = await asyncio.shield(started.exited)
        except TimeoutError:
            self._runtime.signal(started, SIGKILL)
            return None, ""
        finally:
            if not started.exited.done():
                self._runtime.signal(started, SIGKILL)
        return ended.code, ended.output

    async def run_hook(self, pod: Object, name: str, seconds: float) -> bool:
        """Runs the hook `postStart` or `preStop`, if the container has one.

        Hooks are `exec` or `sleep`; a faked container has none. Returns False, and records an event, if it fails or
        takes longer than `seconds`.
        """
        hook = (self.spec.get("lifecycle") or {}).get(name)
        if not hook or self.launch is None:
            return True
        if "sleep" in hook:
            await asyncio.sleep(min(float(hook["sleep"]["seconds"]), seconds))
            return True
        code, output = await self.execute(hook["exec"]["command"], seconds)
        if code == 0:
            return True
        kind = name[0].upper() + name[1:]
        message = f"{kind}Hook failed" + (f": {output.strip()}" if output.strip() else "")
        self._event(pod, "Warning", f"Failed{kind}Hook", message)
        return False

    def _message(self, ended: Exit) -> str:
        if ended.message:
            return ended.message
        if self.launch is None:
            return ""
        text = _tail(self.launch.termination_log)
        if not text and ended.code != 0 and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            return last_lines(Path(self.launch.config.log))
        return text

    def _event(self, pod: Object, kind: str, reason: str, message: str) -> None:
        self._host.event(pod, kind, reason, message, self.view.name, self.view.init)


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - MESSAGE_BYTES))
            return file.read(MESSAGE_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""


def pod_name(pod: Object) -> str:
    """Returns the kubelet's name for a pod in messages: `name_namespace(uid)`."""
    metadata = pod["metadata"]
    return f"{metadata['name']}_{metadata['namespace']}({metadata['uid']})"

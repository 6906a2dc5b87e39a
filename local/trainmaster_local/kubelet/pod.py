"""A pod's worker brings a pod up, keeps its containers as its restart policy requires, and ends it, in one task.

The task repeats `_step`, which observes everything and does the work that is possible now; every event (a container's
end, a new version of the pod, a probe's verdict, the end of a back-off) only wakes it. The order of a pod's states is
part of its behaviour: each state that a person or a controller acts on is written before the next one begins
(`pkg/kubelet/pod_workers.go`, `kubelet.go:SyncPod`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any

from trainmaster_local.ages import seconds_since_epoch
from trainmaster_local.kubelet.containers.container import ContainerRun
from trainmaster_local.kubelet.containers.launch import rewriter_of
from trainmaster_local.kubelet.containers.probes import Prober, Target, Verdicts
from trainmaster_local.kubelet.containers.runtime import SIGKILL, SIGTERM, ContainerConfig, Runtime
from trainmaster_local.kubelet.containers.stopping import stop_containers
from trainmaster_local.kubelet.devices import OutOfDevicesError
from trainmaster_local.kubelet.host import PodHost, container_ports
from trainmaster_local.kubelet.status import PodView, ended_for_good, pod_status, restarts
from trainmaster_local.kubelet.volumes import ClaimNotBoundError, MountError, PodVolumes, Sources

logger = logging.getLogger(__name__)

Object = Mapping[str, Any]

POST_START_SECONDS = 30.0


class PodWorker:
    """The worker runs one pod from its binding to its end. The node's agent creates and feeds it, on its event loop."""

    def __init__(self, host: PodHost, pod: Object, runtime: Runtime, faked: bool = False) -> None:
        self.pod = pod
        self.uid = str(pod["metadata"]["uid"])
        self._host = host
        self._runtime = runtime
        self._faked = faked
        self._wake = asyncio.Event()
        inits = pod["spec"].get("initContainers") or []
        waiting = "PodInitializing" if inits else "ContainerCreating"
        self._runs = [ContainerRun(host, runtime, spec, True, self.wake, waiting) for spec in inits]
        self._runs += [
            ContainerRun(host, runtime, spec, False, self.wake, waiting) for spec in pod["spec"]["containers"]
        ]
        self.view = PodView([run.view for run in self._runs], host.host_ip, time.time())
        self._volumes: PodVolumes | None = None
        self._gone = False
        self._abandoned = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.task = asyncio.create_task(
            self._main(), name=f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']}"
        )

    def wake(self) -> None:
        self._wake.set()

    def update(self) -> None:
        """Handles a new version of the pod: updates files with its annotations at once, the rest in the next step."""
        newest = self._host.newest(self.pod)
        if newest is not None:
            self.pod = newest
        self.refresh_volumes()
        self.wake()

    def refresh_volumes(self) -> None:
        """Writes volumes whose objects changed.

        If an object was deleted, its files stay as they were, as with the kubelet.
        """
        if self._volumes is not None and self.view.sandbox_ready:
            try:
                self._volumes.refresh(self.pod)
            except MountError as error:
                logger.debug("pod %s: %s", self.pod["metadata"]["name"], error)

    async def renew_tokens(self) -> None:
        """Replaces service account tokens before they expire."""
        if self._volumes is not None and self.view.sandbox_ready:
            await self._volumes.renew_tokens(self.pod, time.monotonic())

    def forget(self) -> None:
        """Ends the remaining processes, because the pod is gone from the API."""
        self._gone = True
        self.wake()

    async def abandon(self) -> None:
        """Stops managing the pod without a report to the API; the runtime ends its processes."""
        self._abandoned = True
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    async def kill_all(self) -> None:
        """Kills every process of the pod, and returns when they have ended."""
        ends = [run.running.exited for run in self._runs if run.running is not None]
        for run in self._runs:
            run.signal(SIGKILL)
        if ends:
            await asyncio.wait(ends)

    @property
    def _stopping(self) -> bool:
        return self._gone or bool(self.pod["metadata"].get("deletionTimestamp"))

    async def _main(self) -> None:
        try:
            if not self._stopping and await self._admit() and await self._set_up():
                while not self._stopping and not self.view.terminal:
                    self._wake.clear()
                    delay = await self._step()
                    if not self._stopping and not self.view.terminal:
                        await self._sleep(delay)
            while not self._stopping:
                # A pod that has ended stays until it is deleted.
                self._wake.clear()
                await self._sleep(None)
            await self._terminate()
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception(
                "pod %s/%s: worker failed", self.pod["metadata"]["namespace"], self.pod["metadata"]["name"]
            )
        finally:
            for run in self._runs:
                if run.prober:
                    run.prober.stop()
            for task in self._tasks:
                task.cancel()
            if not self._abandoned and self.view.pod_ip:
                self._release_address(self.view.pod_ip)

    async def _sleep(self, delay: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._wake.wait()

    async def _publish(self) -> None:
        """Writes the status if it differs from the API's. A failed write is retried a few times."""
        newest = self._host.newest(self.pod)
        if newest is None:
            self._gone = True
            return
        self.pod = newest
        status = pod_status(newest, self.view, time.time())
        if status == newest.get("status"):
            return
        written = await self._host.write_status(newest, status)
        if written is None:
            self._gone = True
        else:
            self.pod = written

    async def _admit(self) -> bool:
        """Waits for the pod's devices, which a faked pod doesn't need.

        Returns False if the pod has to end without them.
        """
        try:
            while not self._faked and not self._stopping and not self._host.admit(self.pod):
                self._wake.clear()
                await self._sleep(None)
        except OutOfDevicesError as error:
            self._host.event(self.pod, "Warning", error.reason, str(error))
            # The kubelet makes no containers for a pod that it rejects.
            self._runs = []
            self.view.containers = []
            await self._fail(error.reason, f"Pod was rejected: {error}")
        return not self._stopping and not self.view.terminal

    async def _set_up(self) -> bool:
        """Creates folders, volumes and an address. Returns False if the pod has to end before that is done."""
        if self._faked:
            self.view.pod_ip = self._allocate_address()
            self.view.sandbox_ready = True
            return True
        await self._publish()
        folder = self._host.pod_folder(self.pod)
        self.view.pod_ip = ""
        address = self._allocate_address()
        wait = 0.5
        while not self._stopping:
            try:
                await self._mount(folder, address)
                break
            except ClaimNotBoundError:
                self._wake.clear()
                await self._sleep(0.05)
            except MountError as error:
                self._host.event(self.pod, "Warning", "FailedMount", str(error))
                self._wake.clear()
                await self._sleep(wait)
                wait = min(wait * 2, 122.0)
        else:
            self._release_address(address)
            return False
        self.view.sandbox_ready = True
        await self._publish()
        # The address is shown with the first container, as the kubelet does.
        self.view.pod_ip = address
        return True

    def _allocate_address(self) -> str:
        """Returns the pod's own address, or the node's with `hostNetwork`."""
        return self._host.host_ip if self.pod["spec"].get("hostNetwork") else self._host.allocate_address()

    def _release_address(self, address: str) -> None:
        if address != self._host.host_ip:
            self._host.release_address(address)

    async def _mount(self, folder: Any, address: str) -> None:
        host, pod = self._host, self.pod

        async def token(audience: str, seconds: int) -> str:
            return await host.token(pod, audience, seconds)

        def claim(name: str) -> Any:
            return host.claim_folder(pod["metadata"]["namespace"], name)

        sources = Sources(host.facts(pod, address), token, claim, host.memory_folder)
        volumes = PodVolumes(pod, folder / "volumes", sources)
        volumes.place()
        volumes.use(rewriter_of(pod, volumes).rewrite)
        await volumes.mount(pod)
        self._volumes = volumes

    async def _step(self) -> float | None:
        """Does the work that is possible now. Returns the seconds until the next step, or None to wait for an event."""
        if self._collect():
            await self._publish()
        deadline = self._deadline()
        if deadline is not None and deadline <= 0:
            await self._fail("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
            return None
        delays = [] if deadline is None else [deadline]
        for run in self._runs:
            if not run.view.init:
                continue
            if run.view.initialized and (not run.view.sidecar or run.running):
                continue
            if self._failed_for_good(run):
                await self._finish()
                return None
            delay = await self._ensure(run)
            if not run.view.initialized:
                await self._publish()
                return min([*delays, delay]) if delay is not None else (min(delays) if delays else None)
        apps = [run for run in self._runs if not run.view.init]
        if all(self._ended_for_good(run) for run in apps):
            await self._finish()
            return None
        for run in apps:
            if not self._ended_for_good(run):
                delay = await self._ensure(run)
                if delay is not None:
                    delays.append(delay)
        await self._publish()
        return min(delays) if delays else None

    def _deadline(self) -> float | None:
        """Returns the seconds until activeDeadlineSeconds has passed."""
        limit = self.pod["spec"].get("activeDeadlineSeconds")
        started = (self.pod.get("status") or {}).get("startTime")
        if limit is None or not started:
            return None
        return seconds_since_epoch(str(started)) + float(limit) - time.time()

    def _ended_for_good(self, run: ContainerRun) -> bool:
        return ended_for_good(self.pod["spec"], run.view)

    def _failed_for_good(self, run: ContainerRun) -> bool:
        return self._ended_for_good(run) and not run.view.initialized

    async def _ensure(self, run: ContainerRun) -> float | None:
        """Starts a container if it may start now; returns when to check it again."""
        if run.running is not None:
            return None
        finished = run.view.finished
        if finished is not None and not restarts(self.pod["spec"], run.view, finished.exit_code):
            return None
        remaining = run.wait_before_start(self.pod, time.time())
        if remaining > 0:
            return remaining
        if run.backed_off:
            # The container has been waiting; its status shows the reason before it starts again.
            run.show_backoff(self.pod)
            await self._publish()
        if self._volumes is None and not self._faked:
            return None
        if self._faked:
            await self._start_faked(run)
        else:
            assert self._volumes is not None
            await run.try_start(self.pod, self._volumes, self.view.pod_ip)
        if run.running is None:
            await self._publish()
            return max(0.001, run.wait_before_start(self.pod, time.time()))
        if not self._faked:
            self._after_start(run)
        return None

    async def _start_faked(self, run: ContainerRun) -> None:
        config = ContainerConfig([], {}, "", pod_uid=self.uid, name=run.view.name)
        await run.start_bare(config)
        if run.view.init and not run.view.sidecar:
            # Containers that must end before the others start end at once.
            run.signal(SIGTERM)

    def _after_start(self, run: ContainerRun) -> None:
        target = Target(self.view.pod_ip, container_ports(self.pod), run.execute)

        def ready(value: bool) -> None:
            run.view.ready = value
            self._spawn(self._publish())

        def started() -> None:
            run.view.started = True
            if not run.spec.get("readinessProbe"):
                run.view.ready = True
            self.wake()

        def unhealthy(kind: str, probe: Object) -> None:
            word = kind.lower()
            message = f"Container {run.view.name} failed {word} probe, will be restarted"
            self._host.event(self.pod, "Normal", "Killing", message, run.view.name, run.view.init)
            run.kill(self.pod, float(probe.get("terminationGracePeriodSeconds") or self._grace_period()))

        def event(message: str) -> None:
            self._host.event(self.pod, "Warning", "Unhealthy", message, run.view.name, run.view.init)

        run.prober = Prober(run.spec, target, Verdicts(ready, started, unhealthy, event))
        run.prober.start()
        self._spawn(self._post_start(run))

    async def _post_start(self, run: ContainerRun) -> None:
        if not await run.run_hook(self.pod, "postStart", POST_START_SECONDS):
            run.kill(self.pod, self._grace_period())

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _collect(self) -> bool:
        """Handles the ends of containers."""
        ended = [run.collect() for run in self._runs]
        return any(ended)

    async def _finish(self) -> None:
        """Finishes the pod after all containers have ended and none starts again."""
        await self._publish()
        await self._stop_containers(self._grace_period)
        self.view.terminal = True
        self.view.settle(time.time())
        await self._publish()

    async def _fail(self, reason: str, message: str) -> None:
        """Ends the pod as Failed, whatever the state of its containers."""
        await self._stop_containers(self._grace_period)
        self.view.failed, self.view.terminal = True, True
        self.view.reason, self.view.message = reason, message
        self.view.settle(time.time())
        await self._publish()

    def _grace_period(self) -> float:
        return float(self.pod["spec"].get("terminationGracePeriodSeconds", 30))

    async def _terminate(self) -> None:
        """Ends a deleted pod's containers within the grace period, reports how they ended, and releases the pod."""
        if not self._gone and not self.view.terminal:
            await self._publish()
        await self._stop_containers(self._deletion_grace)
        self.view.terminal = True
        self.view.settle(time.time())
        if not self._gone:
            await self._publish()
        volumes, self._volumes = self._volumes, None
        if volumes is not None:
            await asyncio.to_thread(volumes.remove)
        if not self._faked:
            folder = self._host.pod_folder(self.pod)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            logs = self._host.log_path(self.pod, "c", 0).parent.parent
            await asyncio.to_thread(shutil.rmtree, logs, ignore_errors=True)
        if not self._gone:
            await self._host.delete(self.pod)

    async def _stop_containers(self, grace: Callable[[], float]) -> None:
        await stop_containers(self._runs, lambda: self.pod, grace, self._wake)
        self._host.release_devices(self.pod)

    def _deletion_grace(self) -> float:
        """Returns the deletion's grace period in seconds.

        The grace period is at least the kubelet's minimum; a later deletion may shorten it.
        """
        minimum = self._host.timings.minimum_grace_seconds
        asked = self.pod["metadata"].get("deletionGracePeriodSeconds")
        if self._gone or asked is None:
            return minimum
        return max(float(asked), minimum)

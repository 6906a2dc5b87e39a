"""Stops a pod's containers: preStop hooks, SIGTERM, and SIGKILL after the grace period.

See `kuberuntime_container.go:killContainer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainmaster_local.kubelet.containers.container import ContainerRun
from trainmaster_local.kubelet.containers.runtime import SIGKILL

Object = Mapping[str, Any]


async def stop_containers(
    runs: Sequence[ContainerRun],
    pod: Callable[[], Object],
    grace: Callable[[], float],
    wake: asyncio.Event,
) -> None:
    """Ends the running containers, and returns when all have ended.

    `pod` and `grace` (seconds) are read again whenever `wake` is set, because a later deletion may shorten the grace
    period.
    """
    running = [run for run in runs if run.running is not None]
    if not running:
        return
    for run in running:
        run.announce_stop(pod())
    began = time.monotonic()
    politely = [asyncio.create_task(run.ask_to_stop(pod(), grace())) for run in running]
    try:
        while True:
            wake.clear()
            for run in runs:
                run.collect()
            left = [run for run in running if run.running is not None]
            if not left:
                return
            remaining = began + grace() - time.monotonic()
            if remaining <= 0:
                for run in left:
                    run.signal(SIGKILL)
                remaining = 1.0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(remaining):
                    await wake.wait()
    finally:
        for task in politely:
            task.cancel()

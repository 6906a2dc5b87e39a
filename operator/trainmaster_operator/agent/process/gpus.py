"""This module samples the pod's GPUs in a thread, because a driver that has lost a GPU can hang a call for minutes.

NVIDIA's figures come from the driver's library (NVML), which the container runtime mounts into the pod. The library
lists only the devices that the container may open, numbered from 0 in the order of `nvidia-smi` (NVIDIA/nvidia-docker
issues 170 and 907). AMD's come from the kernel (Linux, Documentation/gpu/amdgpu). Without a device, no thread runs.
"""

from __future__ import annotations

import contextlib
import glob
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Optional

from trainmaster_operator.agent.process.children import read_text
from trainmaster_operator.wire.limits import MAX_GPUS
from trainmaster_operator.wire.system import GpuSample

if TYPE_CHECKING:
    import ctypes

NVIDIA, AMD = "/dev/nvidiactl", "/dev/kfd"
AMD_CARDS = "/sys/class/drm/card[0-9]*/device"
STALE = 3.0
"""Figures older than this many periods are dropped, because the driver hangs or the thread has ended."""
Sample = Mapping[int, GpuSample]


class GpuSampler:
    """GpuSampler holds the newest sample. Its thread samples every `seconds` until the process ends."""

    def __init__(self, seconds: float, find: Optional[Callable[[], Optional[Callable[[], Sample]]]] = None) -> None:
        self._seconds = seconds
        self._newest: tuple[float, Sample] = (0.0, {})
        if find is not None or os.path.exists(NVIDIA) or os.path.exists(AMD):
            threading.Thread(target=self._run, args=(find or find_gpus,), name="gpus", daemon=True).start()

    def newest(self, now: float) -> Sample:
        """Returns the newest sample, by the GPUs' indexes; empty if it is too old. `now`: monotonic seconds."""
        at, sample = self._newest
        return sample if now - at <= STALE * self._seconds else {}

    def _run(self, find: Callable[[], Optional[Callable[[], Sample]]]) -> None:
        import signal

        # The agent's signals must not interrupt the driver's calls.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        read = find()
        while read is not None:
            sample = read()
            if not self._newest[1]:
                keep_from_children()
            self._newest = time.monotonic(), sample
            time.sleep(self._seconds)


def find_gpus() -> Optional[Callable[[], Sample]]:
    """Returns a function that samples the GPUs; None if there are none, or if their library is missing."""
    if os.path.exists(NVIDIA):
        # An image's Python may lack ctypes, and the library is missing without the driver capability `utility`.
        try:
            import ctypes

            nvml = Nvml(ctypes.CDLL("libnvidia-ml.so.1"), ctypes)
        except (ImportError, OSError):
            return None
        return nvml.sample
    return amd_gpus if glob.glob(f"{AMD_CARDS}/gpu_busy_percent") else None


def keep_from_children() -> None:
    """Keeps new processes from inheriting the devices that the library has opened.

    With an open device, a warm process would count as unusable (`kernel.has_device`).
    """
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}").startswith("/dev/nvidia"):
                os.set_inheritable(int(number), False)


class Nvml:
    """Nvml calls NVIDIA's library (nvml.h). A figure whose call fails is unknown."""

    def __init__(self, library: Any, c: Any) -> None:
        self._library, self._c = library, c
        self._is_ready = False

    def sample(self) -> Sample:
        """Returns the figures of each GPU, or of each MIG device in place of its GPU. A lost GPU is left out."""
        self._is_ready = self._is_ready or self._call("nvmlInit_v2")
        if not self._is_ready:
            return {}
        handles = [
            handle for gpu in range(self._number("nvmlDeviceGetCount_v2") or 0) for handle in self._devices_of(gpu)
        ]
        return {index: self._figures(handle) for index, handle in enumerate(handles[:MAX_GPUS]) if handle is not None}

    def _devices_of(self, gpu: int) -> list[Optional[ctypes.c_void_p]]:
        handle = self._handle("nvmlDeviceGetHandleByIndex_v2", self._c.c_uint(gpu))
        if handle is None:
            return [None]
        mode, pending = self._c.c_uint(), self._c.c_uint()
        byref = self._c.byref
        if not self._call("nvmlDeviceGetMigMode", handle, byref(mode), byref(pending)) or mode.value != 1:
            return [handle]
        parts = range(min(self._number("nvmlDeviceGetMaxMigDeviceCount", handle) or 0, MAX_GPUS))
        found = [self._handle("nvmlDeviceGetMigDeviceHandleByIndex", handle, self._c.c_uint(part)) for part in parts]
        return [part for part in found if part is not None]

    def _figures(self, handle: ctypes.c_void_p) -> GpuSample:
        # nvmlUtilization_t: the percentages of the GPU and of its memory's bus.
        rates = (self._c.c_uint * 2)()
        used, most = self._memory(handle)
        sample = GpuSample(gpu_memory_bytes=used, gpu_memory_limit_bytes=most)
        if self._call("nvmlDeviceGetUtilizationRates", handle, self._c.byref(rates)):
            sample = sample._replace(gpu_utilization=min(rates[0], 100) / 100)
        return sample

    def _memory(self, handle: ctypes.c_void_p) -> tuple[Optional[float], Optional[float]]:
        """Returns the used memory and the whole memory of a GPU in bytes."""
        # nvmlMemory_v2_t: its version and size, total, reserved, free, used. It doesn't count what the driver reserves.
        second = (self._c.c_ulonglong * 5)(40 | 2 << 24)
        if self._call("nvmlDeviceGetMemoryInfo_v2", handle, self._c.byref(second)):
            return float(second[4]), float(second[1])
        # nvmlMemory_t of drivers before 510: total, free, used.
        first = (self._c.c_ulonglong * 3)()
        if self._call("nvmlDeviceGetMemoryInfo", handle, self._c.byref(first)):
            return float(first[2]), float(first[0])
        return None, None

    def _number(self, name: str, *before: Any) -> Optional[int]:
        found = self._c.c_uint()
        return int(found.value) if self._call(name, *before, self._c.byref(found)) else None

    def _handle(self, name: str, *before: Any) -> Optional[ctypes.c_void_p]:
        found: ctypes.c_void_p = self._c.c_void_p()
        return found if self._call(name, *before, self._c.byref(found)) else None

    def _call(self, name: str, *arguments: Any) -> bool:
        """Returns whether a call has succeeded. An old library lacks some functions."""
        try:
            return bool(getattr(self._library, name)(*arguments) == 0)
        except AttributeError:
            return False


def amd_gpus(cards: str = AMD_CARDS) -> Sample:
    """Returns the figures of the AMD GPUs that the kernel shows in this container, in the order of their numbers."""
    found: dict[int, GpuSample] = {}
    for device in sorted(glob.glob(cards), key=lambda path: (len(path), path)):
        busy, used, most = (
            read_text(os.path.join(device, name)).strip()
            for name in ("gpu_busy_percent", "mem_info_vram_used", "mem_info_vram_total")
        )
        # A container sees all cards of the machine there, but only its own ones in /dev.
        nodes = glob.glob(os.path.join(glob.escape(device), "drm", "renderD*"))
        is_own = not nodes or any(os.path.exists(f"/dev/dri/{os.path.basename(node)}") for node in nodes)
        if busy.isdigit() and is_own and len(found) < MAX_GPUS:
            memory = [float(text) if text.isdigit() else None for text in (used, most)]
            found[len(found)] = GpuSample(min(int(busy), 100) / 100, *memory)
    return found

"""This module samples the worker's processor, memory, network and GPUs every few seconds.

In a container, the kernel's counters of the cgroup are read. If the agent isn't process 1, other workers may share its
cgroup (on the local cluster), so the agent's own descendants are counted. GPUs are sampled in a thread of their own
(`gpus`), because their driver can hang.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Optional

from trainmaster_operator.agent.loop import Loop
from trainmaster_operator.agent.process import children
from trainmaster_operator.agent.process.gpus import GpuSampler
from trainmaster_operator.agent.process.kernel import used_cpu, used_memory
from trainmaster_operator.wire.system import SystemSample

SECONDS = 5.0
"""The time between two samples."""
WORKERS_A_SECOND = 32
"""The samples that all workers together send each second at most. Jobs with more than 160 workers are sampled less
often."""
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class SystemSampler:
    """SystemSampler samples until the agent ends. `publish` is called with each sample, in the loop's thread."""

    def __init__(self, loop: Loop, cgroup_root: str, workers: int, publish: Callable[[SystemSample], None]) -> None:
        self._loop, self._publish = loop, publish
        self._seconds = max(SECONDS, workers / WORKERS_A_SECOND)
        self._host = HostCounters(cgroup_root, in_container=os.getpid() == 1)
        self._gpus = GpuSampler(self._seconds)
        self.last: Optional[SystemSample] = None
        self._host.sample(time.monotonic())
        loop.call_later(1.0, self._sample)

    def _sample(self) -> None:
        self._loop.call_later(self._seconds, self._sample)
        self.last = self._host.sample(time.monotonic())._replace(gpus=self._gpus.newest(time.monotonic()))
        self._publish(self.last)


class HostCounters:
    """HostCounters turns the kernel's counters into rates since the previous sample."""

    def __init__(self, cgroup_root: str, *, in_container: bool, network: str = "/proc/net/dev") -> None:
        self._cgroup_root, self._in_container, self._network = cgroup_root, in_container, network
        self._before: dict[str, float] = {}
        self._at = 0.0
        self._ticks: dict[int, int] = {}
        self._spent = 0.0

    def sample(self, now: float) -> SystemSample:
        """Returns the figures at `now` (monotonic seconds). Rates are unknown in the first sample."""
        if self._in_container:
            cpu, cores = used_cpu(self._cgroup_root)
            used, most = used_memory(self._cgroup_root)
        else:
            (cpu, used), cores, most = self._of_descendants(), None, None
        received, sent = network_bytes(self._network)
        counters = {"cpu": cpu, "received": received, "sent": sent}
        known = {name: value for name, value in counters.items() if value is not None}
        seconds, before = now - self._at, self._before
        rates = {
            name: max(0.0, value - before[name]) / seconds
            for name, value in known.items()
            if name in before and seconds > 0
        }
        self._before, self._at = known, now
        return SystemSample(
            cpu_cores=rates.get("cpu"),
            cpu_limit_cores=float(len(os.sched_getaffinity(0))) if cores is None else cores,
            memory_bytes=used,
            memory_limit_bytes=_machine_memory() if most is None else most,
            network_receive_bytes_per_second=rates.get("received"),
            network_transmit_bytes_per_second=rates.get("sent"),
        )

    def _of_descendants(self) -> tuple[float, int]:
        """Returns the processor time (seconds) and the unshared memory (bytes) of the processes below the agent."""
        ticks: dict[int, int] = {}
        memory = 0
        for pid in children.descendants(os.getpid()):
            used, pages = children.times_of(pid), children.read_text(f"/proc/{pid}/statm").split()
            ticks[pid] = used
            memory += max(0, int(pages[1]) - int(pages[2])) * _PAGE if len(pages) > 2 else 0
        self._spent += sum(max(0, used - self._ticks.get(pid, 0)) for pid, used in ticks.items()) / _TICKS
        self._ticks = ticks
        return self._spent, memory


def network_bytes(path: str) -> tuple[Optional[float], Optional[float]]:
    """Returns the bytes that all interfaces but the loopback one have received and sent (proc(5), /proc/net/dev)."""
    received = sent = 0
    found = False
    for line in children.read_text(path).splitlines()[2:]:
        name, _, rest = line.partition(":")
        counts = rest.split()
        if name.strip() != "lo" and len(counts) > 8 and counts[0].isdigit() and counts[8].isdigit():
            received, sent, found = received + int(counts[0]), sent + int(counts[8]), True
    return (received, sent) if found else (None, None)


def _machine_memory() -> Optional[float]:
    lines: Mapping[str, str] = dict(
        line.split(":", 1) for line in children.read_text("/proc/meminfo").splitlines() if ":" in line
    )
    total = lines.get("MemTotal", "").split()
    return float(total[0]) * 1024 if total and total[0].isdigit() else None

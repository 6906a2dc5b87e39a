"""The agent samples its container's processor, memory, network and GPUs, and a driver that hangs stops nothing."""

from __future__ import annotations

import ctypes
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from trainmaster_operator.agent.process import gpus, system
from trainmaster_operator.agent.process.gpus import GpuSampler, Nvml, amd_gpus
from trainmaster_operator.agent.process.system import HostCounters, network_bytes
from trainmaster_operator.wire.system import GpuSample

GIB = 2**30
NETWORK = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls
    lo: 500 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0
  eth0: {} 9 0 0 0 0 0 0 {} 3 0 0 0 0 0 0
  net1:{} 9 0 0 0 0 0 0 {} 3 0 0 0 0 0 0
"""


def write(folder: Path, **files: object) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_of_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def test_the_second_version_of_cgroups_and_the_network_give_rates(tmp_path: Path) -> None:
    network = tmp_path / "dev"
    counters = HostCounters(str(tmp_path), in_container=True, network=str(network))
    stat, memory = "usage_usec 5000000\nuser_usec 1", "anon 1\ninactive_file 1073741824"
    write(tmp_path, cpu_of_stat=stat, cpu_of_max="150000 100000", memory_of_max=8 * GIB)
    write(tmp_path, memory_of_current=3 * GIB, memory_of_stat=memory, dev=NETWORK.format(100, 10, 1, 1))
    first = counters.sample(10.0)
    assert (first.cpu_cores, first.network_receive_bytes_per_second) == (None, None), "no rate is known yet"
    assert (first.cpu_limit_cores, first.memory_bytes, first.memory_limit_bytes) == (1.5, 2 * GIB, 8 * GIB)
    write(tmp_path, cpu_of_stat="usage_usec 8000000", dev=NETWORK.format(300, 10, 1, 101))
    second = counters.sample(12.0)
    assert second.cpu_cores == pytest.approx(1.5)
    assert (second.network_receive_bytes_per_second, second.network_transmit_bytes_per_second) == (100.0, 50.0)
    write(tmp_path, cpu_of_stat="usage_usec 1000", dev="")
    third = counters.sample(14.0)
    assert (third.cpu_cores, third.network_receive_bytes_per_second) == (0.0, None), "a counter has begun again"


def test_the_first_version_of_cgroups(tmp_path: Path) -> None:
    counters = HostCounters(str(tmp_path), in_container=True)
    write(tmp_path, cpuacct__cpuacct_of_usage=2_000_000_000, cpu__cpu_of_cfs_quota_us=-1)
    write(tmp_path, cpu__cpu_of_cfs_period_us=100_000, memory__memory_of_usage_in_bytes=GIB)
    write(tmp_path, memory__memory_of_limit_in_bytes=9223372036854771712)
    first = counters.sample(10.0)
    assert first.memory_bytes == GIB and first.cpu_limit_cores is not None and first.cpu_limit_cores >= 1
    assert first.memory_limit_bytes is not None and first.memory_limit_bytes > GIB, "the machine's memory"
    write(tmp_path, cpuacct__cpuacct_of_usage=3_000_000_000, cpu__cpu_of_cfs_quota_us=400_000)
    write(tmp_path, memory__memory_of_limit_in_bytes=4 * GIB)
    second = counters.sample(12.0)
    assert (second.cpu_cores, second.cpu_limit_cores, second.memory_limit_bytes) == (0.5, 4.0, 4 * GIB)


def test_what_cant_be_read_is_unknown(tmp_path: Path) -> None:
    found = HostCounters(str(tmp_path), in_container=True, network=str(tmp_path / "gone")).sample(1.0)
    assert (found.cpu_cores, found.memory_bytes, found.network_transmit_bytes_per_second) == (None, None, None)
    (tmp_path / "dev").write_text("x\ny\n eth0: a b\n eth1\n")
    assert network_bytes(str(tmp_path / "dev")) == (None, None)


def test_outside_of_a_container_the_agents_descendants_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {11: 100, 12: 50}
    monkeypatch.setattr(system.children, "descendants", lambda _: list(times))
    monkeypatch.setattr(system.children, "times_of", lambda pid: times[pid])
    monkeypatch.setattr(system.children, "read_text", lambda path: "900 500 200 1" if path.endswith("statm") else "")
    counters = HostCounters("/nowhere", in_container=False)
    ticks, page = system._TICKS, system._PAGE
    assert counters.sample(10.0).memory_bytes == 2 * 300 * page
    times.update({12: 50 + ticks, 13: ticks})
    del times[11]
    assert counters.sample(12.0).cpu_cores == pytest.approx(1.0), "one that has ended takes nothing away"


class Library:
    """Is NVIDIA's library with GPUs; a GPU is the percentage and the memory in use, "mig" or "lost"."""

    def __init__(self, *cards: Any) -> None:
        self.cards, self.inits, self.failing = cards, 0, 0

    def nvmlInit_v2(self) -> int:
        self.inits += 1
        return self.failing

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.cards)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.value = index.value + 1
        return 15 if self.cards[index.value] == "lost" else 0

    def nvmlDeviceGetMigMode(self, handle: Any, mode: Any, _: Any) -> int:
        mode._obj.value = 1
        return 0 if self.cards[handle.value - 1] == "mig" else 3

    def nvmlDeviceGetMaxMigDeviceCount(self, _: Any, count: Any) -> int:
        count._obj.value = 7
        return 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, _: Any, part: Any, handle: Any) -> int:
        handle._obj.value = 100 + part.value
        return 0 if part.value in (0, 2) else 6

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:
        if handle.value >= 100:
            return 3
        rates._obj[0] = self.cards[handle.value - 1][0]
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj[0] = 80 * GIB
        memory._obj[2] = handle.value * GIB if handle.value >= 100 else self.cards[handle.value - 1][1]
        return 0


def test_nvidias_gpus_are_listed_in_their_order_without_those_that_are_lost() -> None:
    found = Nvml(Library((97, 60 * GIB), "lost", (0, GIB)), ctypes).sample()
    assert found == {0: GpuSample(0.97, 60 * GIB, 80 * GIB), 2: GpuSample(0.0, GIB, 80 * GIB)}


def test_a_new_driver_doesnt_count_the_memory_that_it_reserves() -> None:
    class NewLibrary(Library):
        def nvmlDeviceGetMemoryInfo_v2(self, _: Any, memory: Any) -> int:
            assert memory._obj[0] == 0x2000028, "the structure's version and size"
            memory._obj[1], memory._obj[2], memory._obj[4] = 80 * GIB, GIB, 9 * GIB
            return 0

    assert Nvml(NewLibrary((50, GIB)), ctypes).sample() == {0: GpuSample(0.5, 9 * GIB, 80 * GIB)}


def test_each_part_of_a_gpu_in_mig_mode_is_listed_and_its_utilization_is_unknown() -> None:
    found = Nvml(Library("mig", (5, GIB)), ctypes).sample()
    parts = [GpuSample(None, (100 + part) * GIB, 80 * GIB) for part in (0, 2)]
    assert found == {0: parts[0], 1: parts[1], 2: GpuSample(0.05, GIB, 80 * GIB)}


def test_a_driver_that_isnt_ready_is_tried_again_and_an_old_one_lacks_functions() -> None:
    library = Library((50, GIB))
    library.failing = 9
    nvml = Nvml(library, ctypes)
    assert nvml.sample() == {}
    library.failing = 0
    assert nvml.sample() == nvml.sample() != {} and library.inits == 2
    assert Nvml(object(), ctypes).sample() == {}


def test_figures_of_a_driver_that_hangs_are_dropped_and_nothing_waits_for_it() -> None:
    hangs, answered = threading.Event(), threading.Event()

    def read() -> dict[int, GpuSample]:
        if answered.is_set():
            hangs.wait(60)
        answered.set()
        return {0: GpuSample(0.5)}

    sampler = GpuSampler(0.001, lambda: read)
    assert answered.wait(60)
    while not sampler.newest(0.0):
        time.sleep(0.001)
    at = sampler._newest[0]
    assert sampler.newest(at + 0.002) == {0: GpuSample(0.5)} and sampler.newest(at + 0.1) == {}
    hangs.set()


def test_without_a_device_there_is_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "NVIDIA", "/nowhere")
    monkeypatch.setattr(gpus, "AMD", "/nowhere")
    before = threading.active_count()
    assert GpuSampler(5.0).newest(time.monotonic()) == {} and threading.active_count() == before


def test_amds_gpus_are_read_from_the_kernel(tmp_path: Path) -> None:
    for card, busy in (("card10", 7), ("card2", 93)):
        write(tmp_path / card / "device", gpu_busy_percent=busy, mem_info_vram_used=GIB, mem_info_vram_total=2 * GIB)
    write(tmp_path / "card0" / "device", vendor="0x1a03")
    write(tmp_path / "card3" / "device", gpu_busy_percent=5, drm__renderD99__dev="226:99")
    found = amd_gpus(f"{tmp_path}/card[0-9]*/device")
    assert found == {0: GpuSample(0.93, GIB, 2 * GIB), 1: GpuSample(0.07, GIB, 2 * GIB)}, "without another pod's card"

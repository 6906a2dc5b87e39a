"""One line says what a worker's ranks run on, at the start of each attempt. The agent finds it by its first word, and
keeps it with the evidence of an attempt that fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from trainloop.errors import listed

#: Where the kernel module of an accelerator says its version.
_DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"))


def announce(
    device: torch.device, rank: int, local_rank: int, gather: Callable[[str], list[str]] | None = None
) -> None:
    """Print what this worker's ranks run on, once a worker, when the process group and the device are there.

    With `gather`, which is collective, rank 0 says in a sentence which ranks run on something else.
    """
    line = describe(device)
    if local_rank == 0:
        print(f"environment: {line}", flush=True)
    lines = gather(line) if gather else [line]
    others = {other: [each for each, said in enumerate(lines) if said == other] for other in lines if other != line}
    if others and rank == 0:
        said = "; ".join(f"{other} on rank {listed(ranks)}" for other, ranks in others.items())
        print(f"warning: not all ranks run on what rank 0 does: {said}", flush=True)


def describe(device: torch.device) -> str:
    """Returns what a rank of this device runs on. The device is in use already: CUDA isn't started for this."""
    if device.type == "cuda":
        parts = _cuda(device)
    elif device.type == "cpu":
        parts = ["CPU", f"threads {torch.get_num_threads()}"]
    else:
        parts = [str(torch.get_device_module(device).get_device_name(device))]
    backend = f"backend {dist.get_backend_config()}" if dist.is_initialized() else "one rank without a backend"
    return ", ".join([*parts, f"torch {torch.__version__}", backend])


def _cuda(device: torch.device) -> list[str]:
    index = torch.cuda.current_device() if device.index is None else device.index
    others = [other for other in range(torch.cuda.device_count()) if other != index]
    peers = sum(torch.cuda.can_device_access_peer(index, other) for other in others)
    hip = torch.version.hip
    parts = [f"{len(others) + 1} x {torch.cuda.get_device_name(index)}"]
    parts += [f"driver {driver}"] if (driver := _driver()) else []
    parts.append(f"HIP {hip}" if hip else f"CUDA {torch.version.cuda}")
    if dist.is_nccl_available():
        version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        parts.append(f"{'RCCL' if hip else 'NCCL'} {version}")
    return [*parts, f"peer access to {peers} of {len(others)} other GPUs"]


def _driver() -> str:
    for path in _DRIVERS:
        if path.is_file() and (found := re.search(r"\d+\.\d+(\.\d+)?", path.read_text())):
            return found[0]
    return ""

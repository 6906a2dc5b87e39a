"""A rank provides its stacks and torch's flight recorder to the agent, even while the rank hangs.

See docs/protocol.md, "A stalled rank". On SIGUSR2, faulthandler prints the stacks of all threads. It is written in C,
so it works while the interpreter is stuck. NCCL's process groups dump torch's flight recorder when a byte is written to
a named pipe. For gloo, a thread in this module does the same.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from trainloop.errors import listed

PIPE_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
DUMP_VARIABLE = "TORCH_FR_DUMP_TEMP_FILE"


def dump_stacks_on_signal(rank: int) -> None:
    """Makes each later SIGUSR2 print this process's stacks, to the file that the agent names or else to stderr."""
    named, flags = os.environ.get("TRAINMASTER_STACKS_FILE"), os.O_WRONLY | os.O_APPEND | os.O_CREAT
    # A descriptor is used, because faulthandler doesn't keep a file object alive.
    file = os.open(f"{named}.{rank}", flags, 0o644) if named else sys.stderr
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True, chain=False)


def serve_flight_recorder(rank: int, backend: str) -> None:
    """Starts a thread that dumps the flight recorder whenever the agent asks; with NCCL, torch itself does that."""
    pipe, dump = os.environ.get(PIPE_VARIABLE), os.environ.get(DUMP_VARIABLE)
    if not pipe or not dump or "nccl" in backend:
        return
    path = Path(f"{pipe}{rank}.pipe")
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    # The pipe is opened for writing too, so that there is no end-of-file between two requests.
    fd = os.open(path, os.O_RDWR)
    threading.Thread(target=_serve, args=(fd, Path(f"{dump}{rank}")), daemon=True, name="flight recorder").start()


def _serve(fd: int, target: Path) -> None:
    from torch._C import _distributed_c10d

    while os.read(fd, 128):
        # The dump is made without stacks, because to name their frames, torch (2.13) imports its compiler first, which
        # takes seconds.
        dump: bytes = _distributed_c10d._dump_fr_trace(True, False)  # type: ignore[attr-defined]
        temporary = target.with_name(f".{target.name}")
        temporary.write_bytes(dump)
        temporary.replace(target)


#: Files with the version of an accelerator's kernel module.
_DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"))


def announce(
    device: torch.device, rank: int, local_rank: int, gather: Callable[[str], list[str]] | None = None
) -> None:
    """Prints this worker's environment once; call it when the process group and the device exist.

    If the collective `gather` is given, rank 0 warns about ranks whose environment differs from its own.
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
    """Returns a description of a rank's environment on this device. If the device is CUDA's, CUDA is initialised."""
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

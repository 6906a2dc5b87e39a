"""A rank gives its stacks and torch's flight recorder to the agent, also while it hangs (docs/protocol.md, "A stalled
rank").

At SIGUSR2 faulthandler prints the stacks of all threads, in C, while the interpreter may be stuck. Process groups of
NCCL dump torch's flight recorder when something is written into a named pipe; for gloo a thread here does the same.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from pathlib import Path

PIPE_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
DUMP_VARIABLE = "TORCH_FR_DUMP_TEMP_FILE"


def dump_stacks_on_signal(rank: int) -> None:
    """This process prints its stacks at SIGUSR2 from now on: to the file that the agent named, else to stderr."""
    named, flags = os.environ.get("TRAINMASTER_STACKS_FILE"), os.O_WRONLY | os.O_APPEND | os.O_CREAT
    # A descriptor, which stays open; faulthandler doesn't keep a file alive.
    file = os.open(f"{named}.{rank}", flags, 0o644) if named else sys.stderr
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True, chain=False)


def serve_flight_recorder(rank: int, backend: str) -> None:
    """Dump the flight recorder whenever the agent asks for it; torch does so itself for NCCL."""
    pipe, dump = os.environ.get(PIPE_VARIABLE), os.environ.get(DUMP_VARIABLE)
    if not pipe or not dump or "nccl" in backend:
        return
    path = Path(f"{pipe}{rank}.pipe")
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    # Open for writing too, so that it never shows an end of file between two requests.
    fd = os.open(path, os.O_RDWR)
    threading.Thread(target=_serve, args=(fd, Path(f"{dump}{rank}")), daemon=True, name="flight recorder").start()


def _serve(fd: int, target: Path) -> None:
    from torch._C import _distributed_c10d

    while os.read(fd, 128):
        # Without stacks: naming their frames makes torch import its compiler first, which takes seconds (torch 2.13).
        dump: bytes = _distributed_c10d._dump_fr_trace(True, False)  # type: ignore[attr-defined]
        temporary = target.with_name(f".{target.name}")
        temporary.write_bytes(dump)
        temporary.replace(target)

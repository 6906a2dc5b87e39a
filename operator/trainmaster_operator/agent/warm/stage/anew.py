"""What a forked rank starts anew, so that it can't tell itself from one that was started."""

from __future__ import annotations

import gc
import json
import os
import signal
import stat
import sys
import time

from . import LEARN_SIGNAL
from .imports import packaged_modules

STACKS_DESCRIPTOR = 500
"""The first descriptor that may be the file for stacks."""


def start_anew() -> None:
    """Draw what a start draws from the system, and forget what was cached of folders and of this process.

    `random` does that itself (os.register_at_fork).
    """
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    torch = sys.modules.get("torch.random")
    if torch is not None:
        torch.default_generator.seed()
    threading = sys.modules.get("threading")
    if threading is not None:
        # Python itself keeps the number of the process that was forked.
        threading.main_thread()._set_native_id()
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)
    logging = vars(sys.modules.get("logging", object))
    if "_startTime" in logging:
        # What %(relativeCreated)d counts from; nanoseconds from Python 3.13 on.
        logging["_startTime"] = time.time_ns() if isinstance(logging["_startTime"], int) else time.time()
    for finder in (*sys.meta_path, *sys.path_importer_cache.values()):
        invalidate = getattr(finder, "invalidate_caches", None)
        if invalidate is not None:
            invalidate()
    _keep_default_group()


def _keep_default_group() -> None:
    """Keep the first default process group for the process's life, as it is kept in a rank that was started.

    There DDP's first step imports torch.distributed.nn.functional, whose functions have the group as a default argument
    from then on; here that was imported before there was a group. Once nobody has it, a rank may hang at its end: DDP's
    reducer joins gloo's threads with Python's lock held, and one of them waits for that lock (torch 2.13).
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    update = getattr(c10d, "_update_default_pg", None)
    if "torch.distributed.nn.functional" not in sys.modules or update is None:
        return
    kept: list[object] = []

    def update_and_keep(group: object) -> None:
        if not kept and group is not None:
            kept.append(group)
        update(group)

    c10d._update_default_pg = update_and_keep  # type: ignore[union-attr]


def collect_as_before(*, collects: bool) -> None:
    """Leave Python's collector as a start would: what was imported is old, and nothing is counted as new."""
    # Moves all objects to where they aren't collected, sets the counts to zero, and moves them to the oldest ones.
    gc.freeze()
    gc.unfreeze()
    if collects:
        gc.enable()


def reopen(fd: int) -> None:
    """Give this process a file of its own in place of a shared one: a shared one has one position for all ranks."""
    import fcntl

    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return
        flags, at = fcntl.fcntl(fd, fcntl.F_GETFL), os.lseek(fd, 0, os.SEEK_CUR)
        opened = os.open(f"/proc/self/fd/{fd}", flags & ~(os.O_CREAT | os.O_TRUNC | os.O_EXCL))
    except OSError:
        return
    os.lseek(opened, at, os.SEEK_SET)
    os.dup2(opened, fd, inheritable=os.get_inheritable(fd))
    os.close(opened)


def print_stacks_when_asked() -> None:
    """Have the stacks of all threads printed at SIGUSR2, to the file that the agent reads (hang/stacks.py).

    A program that wants the signal for itself takes it, as if it were still at its default, and `getsignal` says that
    it is. The descriptor is beyond those that a program gets or counts on.
    """
    import faulthandler
    import fcntl

    named, rank = os.environ.get("TRAINMASTER_STACKS_FILE"), os.environ.get("RANK")
    if not named or not rank:
        return
    try:
        opened = os.open(f"{named}.{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError:
        return
    try:
        kept = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, STACKS_DESCRIPTOR)
    except OSError:
        # So many descriptors aren't allowed.
        return
    finally:
        os.close(opened)
    faulthandler.register(signal.SIGUSR2, file=kept, all_threads=True, chain=False)


def listen_for_learning(path: str) -> None:
    """Let the agent ask for this rank's modules, once."""

    def answer(_number: int, _frame: object) -> None:
        signal.signal(LEARN_SIGNAL, signal.SIG_DFL)
        temporary = f"{path}.new"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(packaged_modules(), file)
        os.replace(temporary, path)

    signal.signal(LEARN_SIGNAL, answer)
    signal.siginterrupt(LEARN_SIGNAL, False)

"""A rank's program records what it can see of its own start; started cold or warm, it must see the same."""

from __future__ import annotations

import atexit
import faulthandler
import gc
import json
import logging
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any


def text(path: str) -> str:
    return Path(path).read_text()


def stream(file: Any) -> dict[str, Any]:
    buffer = file.buffer
    status = os.fstat(file.fileno())
    return {
        "type": [type(file).__name__, type(buffer).__name__, type(getattr(buffer, "raw", buffer)).__name__],
        "flags": [file.encoding, file.errors, file.line_buffering, file.write_through, file.isatty(), file.mode],
        "name": [file.name, file.fileno()],
        "kind": [oct(status.st_mode), status.st_blksize],
        "open": text(f"/proc/self/fdinfo/{file.fileno()}").split()[3],
    }


def proc_status() -> dict[str, str]:
    names = ("Name", "Umask", "State", "TracerPid", "Uid", "Gid", "Groups", "NoNewPrivs", "CapEff", "Seccomp")
    signals = ("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt")
    lines = (line.split(":", 1) for line in text("/proc/self/status").splitlines())
    return {name: value.strip() for name, value in lines if name in names + signals}


def children_say(kinds: list[str]) -> dict[str, Any]:
    """Returns what children compute that are made in these ways, and those of data loaders and of `subprocess`."""
    found: dict[str, Any] = {}
    for method in kinds:
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=answer, args=(queue,))
        process.start()
        found[method] = queue.get(timeout=60)
        process.join()
        found[f"{method} code"] = process.exitcode
    for method in kinds:
        # A spawned child imports torch, which takes long, so only rank 0 has one, in each way.
        if method == "forkserver" or (method == "spawn" and os.environ["RANK"] != "0"):
            continue
        loader = DataLoader(range(8), batch_size=4, num_workers=1, multiprocessing_context=method)
        found[f"loader {method}"] = [batch.tolist() for batch in loader]
    found["subprocess"] = subprocess.run(
        [sys.executable, "-c", "import os, sys; print(sys.path[1:3], 'sitecustomize' in sys.modules)"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return found


def answer(queue: Any) -> None:
    main = sys.modules["__main__"]
    queue.put([main.__name__, Path(main.__file__ or "").name, sys.argv, multiprocessing.parent_process() is None])


def seen() -> dict[str, Any]:
    """Returns what is the same in every rank, however it is started."""
    return {
        "main": {
            name: repr(value)
            for name, value in vars(sys.modules["__main__"]).items()
            if name
            in ("__name__", "__doc__", "__package__", "__file__", "__cached__", "__builtins__", "__annotations__")
        },
        "spec": getattr(__spec__, "name", None),
        "loader": type(__loader__).__name__,
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "meta_path": [str(type(finder)) for finder in sys.meta_path],
        "flags": str(sys.flags),
        "xoptions": sys._xoptions,
        "warnoptions": sys.warnoptions,
        "warnings": len(warnings.filters),
        "executable": [sys.executable, sys.prefix, sys.base_prefix, str(Path("/proc/self/exe").readlink())],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.gettrace()],
        "streams": [stream(sys.stdin), stream(sys.stdout), stream(sys.stderr)],
        "descriptors": [fd for fd in range(64) if Path(f"/proc/self/fd/{fd}").exists()],
        "cwd": str(Path.cwd()),
        "status": proc_status(),
        "signals": {
            int(number): repr(signal.getsignal(number)).partition(" at ")[0] for number in signal.valid_signals()
        },
        "process": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid(), os.nice(0), os.sched_getscheduler(0)],
        "limits": [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT")],
        "oom": text("/proc/self/oom_score_adj"),
        "environ": dict(os.environ),
        "C environment": dict(
            line.split("=", 1) for line in subprocess.check_output(["env", "-0"], text=True).split("\0") if "=" in line
        ),
        "cmdline": text("/proc/self/cmdline").split("\0"),
        "threads": [
            threading.current_thread() is threading.main_thread(),
            threading.active_count(),
            threading.main_thread().native_id == os.getpid(),
        ],
        "site": [getattr(sys, "site_runs", 0), "sitecustomize" in sys.modules, "usercustomize" in sys.modules],
        "faulthandler": faulthandler.is_enabled(),
        "gc": [
            gc.isenabled(),
            gc.get_threshold(),
            # The youngest objects are collected when there are more of them.
            gc.get_count()[0] <= gc.get_threshold()[0] + 1,
            gc.get_freeze_count(),
            gc.get_debug(),
            gc.callbacks,
        ],
        "torch": [torch.get_num_threads(), torch.get_num_interop_threads(), str(torch.get_default_dtype())],
        "torch bad fork": torch.cuda._is_in_bad_fork(),
        "multiprocessing": [
            multiprocessing.current_process().name,
            multiprocessing.get_start_method(allow_none=True),
            multiprocessing.parent_process(),
        ],
        "locale": [sys.getfilesystemencoding(), sys.getdefaultencoding(), time.tzname],
        "logging": abs(logging.LogRecord("", 0, "", 0, "", None, None).relativeCreated) < 60_000,
        "recursion": sys.getrecursionlimit(),
        "hash": hash("a") if os.environ.get("PYTHONHASHSEED") else None,
    }


def own() -> dict[str, Any]:
    """Returns what must differ from rank to rank."""
    return {
        "random": [random.random(), float(numpy.random.rand()), multiprocessing.current_process().authkey.hex()],
        "torch": [torch.initial_seed(), torch.rand(3).tolist()],
        "pid": os.getpid(),
    }


if __name__ == "__main__":
    # Imported here, so that children that import this as their main module needn't.
    import numpy
    import torch
    from torch.utils.data import DataLoader

    atexit.register(print, "atexit was here", flush=True)
    found = {"sees": seen(), "own": own(), "parent": os.getppid()}
    found["sees"]["children"] = children_say(sys.argv[2:])
    (Path(sys.argv[1]) / f"seen.{os.environ['RANK']}").write_text(json.dumps(found))
    print("on stdout")
    print("on stderr", file=sys.stderr)

"""This module reports to the agent what a rank's Python knows first: an uncaught exception, and a process group.

It is in the library's folder under the name `sitecustomize`, so every Python that gets PYTHONPATH imports it at its
start. It then imports the `sitecustomize` that it has displaced, if there is one. It runs in the job's own Python and
takes a millisecond. In the FIFO TRAINMASTER_RANKS_FILE it announces these words, and the agent ignores them unless the
process is a rank's own:

- `raised PID`: an exception ends this process, and `raised.PID` beside the FIFO contains its traceback. Python and
  torch take 0.4 s to exit, and functions that are registered with `atexit` may take much longer. All of them still run.
- `watched PID`: this process has imported torch. `met PID`: it has formed a process group of several ranks, or it has
  imported another library by which ranks meet.

It also makes SIGUSR2 print the stacks of all threads, to the file that the agent reads (`process/stacks`). A program
can still use the signal itself, because `signal.getsignal` returns the default.
"""

from __future__ import annotations

import atexit
import os
import sys

# Importing `typing` would take several milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import TracebackType
    from typing import Any

_FIFO = os.environ.get("TRAINMASTER_RANKS_FILE", "")
_C10D = "torch.distributed.distributed_c10d"
_OTHERS = ("horovod", "mpi4py", "ray", "torch_xla", "jax", "tensorflow", "byteps", "paddle", "trainloop.continuing")
"""By these libraries, ranks meet without torch's own functions."""
_HOOKS = (__name__, "torch", "wandb", "sentry_sdk")
"""Exception hooks of these modules call the hook before them, and change nothing about the exit."""
_OF_LAUNCHERS = ("ChildFailedError", "CalledProcessError")
"""By these exceptions, launchers report that a rank has failed. The rank's own exception is in their output."""
_MOST_CHARACTERS = 65_536
_STACKS_DESCRIPTOR = 500
"""The lowest descriptor for the file of stacks, higher than those that a program uses or expects to get."""
_TOOLS = ("LD_PRELOAD", "CUDA_INJECTION64_PATH")
"""Tools that these variables load, such as profilers, write their results when the process exits."""


def _announce(word: str) -> None:
    try:
        fifo = os.open(_FIFO, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(fifo, f"{word} {os.getpid()}\n".encode())
        finally:
            os.close(fifo)
    except OSError:
        return  # the agent that listened is gone, or it hasn't read for a long time


def _report_exceptions() -> None:
    """Report an exception that ends this process. If another hook may change the exit code, the agent waits for it."""
    owner, before = os.getpid(), sys.excepthook
    if before is not sys.__excepthook__ or sys.flags.interactive:
        return
    # Functions are called in reverse order, so this one is called last, unless this process was forked.
    leaves = getattr(atexit, "_ncallbacks", lambda: 1)() == 0 and not any(map(os.environ.get, _TOOLS))
    reported: list[bool] = []

    def report(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        before(kind, value, trace)
        ends = issubclass(kind, Exception) and kind.__name__ not in _OF_LAUNCHERS
        if ends and os.getpid() == owner and _is_last():
            try:
                import traceback

                text = "".join(traceback.format_exception(kind, value, trace))
                path = os.path.join(os.path.dirname(_FIFO), f"raised.{owner}")
                with open(path, "w", encoding="utf-8", errors="replace") as file:
                    file.write(text[-_MOST_CHARACTERS:])
                sys.stdout.flush()
                sys.stderr.flush()
            except BaseException:
                return
            _announce("raised")
            # A rank that has only lost a peer doesn't hurry: the agent waits for its end, and for the peer's.
            reported.append("onnection" not in text and not kind.__name__.startswith("Dist"))

    def leave() -> None:
        if True in reported and os.getpid() == owner:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
                if "ctypes" in sys.modules:
                    # C's own library still buffers the output of native code.
                    sys.modules["ctypes"].CDLL(None).fflush(None)
            finally:
                os._exit(1)

    sys.excepthook = report
    if leaves:
        atexit.register(leave)


def _is_last() -> bool:
    """Return whether Python itself has called the hook because the program is over, not the program or a thread."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _HOOKS:
            return False
        frame = frame.f_back
    return True


class _Finder:
    """_Finder waits for the import of torch's process groups. It stays, because others may be iterating the list."""

    done = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if self.done:
            return None
        if name in _OTHERS:
            self.done = True
            _announce("met")
        elif name == _C10D:
            from importlib.machinery import PathFinder

            self.done = True
            spec = PathFinder.find_spec(name, path)
            if spec is not None and spec.loader is not None:
                loader: Any = spec.loader
                execute = loader.exec_module

                def execute_and_watch(module: Any) -> None:
                    execute(module)
                    _watch(module)

                loader.exec_module = execute_and_watch
            return spec
        return None


def _watch(c10d: Any) -> None:
    update = getattr(c10d, "_update_default_pg", None)
    if update is None:
        return

    def update_and_announce(group: Any) -> None:
        update(group)
        size = getattr(group, "size", None)
        if size is not None and size() > 1:
            c10d._update_default_pg = update
            _announce("met")

    c10d._update_default_pg = update_and_announce
    _announce("watched")


def _print_stacks_when_asked() -> None:
    """Do what `stage/forking` does for ranks that are forked from the warm process."""
    named, rank = os.environ.get("TRAINMASTER_STACKS_FILE"), os.environ.get("RANK")
    if not named or not rank:
        return
    import faulthandler
    import fcntl

    # Importing `signal` would take a millisecond.
    from _signal import SIGUSR2  # type: ignore[import-not-found]

    try:
        opened = os.open(f"{named}.{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            kept = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _STACKS_DESCRIPTOR)
        finally:
            os.close(opened)
    except OSError:
        return  # the file can't be made, or the limit of descriptors is too low
    faulthandler.register(SIGUSR2, file=kept, all_threads=True, chain=False)


def _begin() -> None:
    _report_exceptions()
    _print_stacks_when_asked()
    if any(name in sys.modules for name in _OTHERS):
        return
    if _C10D in sys.modules:
        # This process was forked from one that has imported torch.
        _watch(sys.modules[_C10D])
    else:
        sys.meta_path.insert(0, _Finder())


_folder = os.path.dirname(__file__)
if __name__ == "sitecustomize":
    _this = sys.modules.pop(__name__)
    _at = sys.path.index(_folder) if _folder in sys.path else -1
    if _at >= 0:
        del sys.path[_at]
    try:
        __import__(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = _this
    finally:
        if _at >= 0:
            sys.path.insert(_at, _folder)
        if _FIFO:
            _begin()

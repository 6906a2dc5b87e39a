"""What a fork can't repeat is found out while modules are imported, with the module whose import did it.

Each module is looked at when it has been executed, so that the innermost one is blamed and not the package that happens
to import it first. From then on whatever imports a module that is blamed is remembered: it can't be imported before a
fork either. A thread is only blamed if it still runs when all imports are done.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from .this_process import descriptors, fork, has_children, target, thread_ids, threads

THREAD_SECONDS = 1.0
"""A thread that ends so soon after the imports harms no fork."""
_HARMLESS_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/full")
_bootstrap: Any = importlib._bootstrap


class Blame:
    """Blame knows what was found in this process so far."""

    def __init__(self, own_variables: frozenset[str]) -> None:
        self._own_variables = own_variables
        """The variables that are each rank's own."""
        self.problems: dict[str, str] = {}
        """What the import of a module did, in words that follow its name."""
        self._importers: dict[str, set[str]] = {}
        """Who imports a module that may be blamed, directly or not."""
        self._suspects: dict[int, str] = {}
        """Threads, with the module whose import started them."""
        self._stack: list[str] = []
        """The modules that are being imported, the innermost one last."""
        self.open_before = self._descriptors = descriptors()
        """The descriptors of before the first import."""
        self._listing: list[str] = []
        self._threads = thread_ids()
        self._has_children = has_children()
        self._has_context = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Look at each module that is imported in this block, and at what it reads of the environment."""
        environ = type(os.environ)
        read, load = environ.__getitem__, _bootstrap._find_and_load
        natives = builtins.__import__, _bootstrap._gcd_import

        def watched_read(self_: Any, key: Any) -> Any:
            text = os.fsdecode(key) if isinstance(key, (str, bytes)) else ""
            if text in self._own_variables and self._stack:
                self.blame(self._stack[-1], f"read {text}")
            return read(self_, key)

        def watched_load(name: str, import_: Any) -> Any:
            self._stack.append(name)
            try:
                return load(name, import_)
            finally:
                # Its package, which was imported before it.
                self._follow(name)
                self._stack.pop()
                self._look(name)

        def import_(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
            found = natives[0](name, globals, locals, fromlist, level)
            if self._importers:
                package = _bootstrap._calc___package__(globals) if level else ""
                absolute = _bootstrap._resolve_name(name, package, level) if level else name
                self._follow(absolute, *(f"{absolute}.{each}" for each in fromlist or ()))
            return found

        def gcd_import(name: str, package: Any = None, level: int = 0) -> Any:
            found = natives[1](name, package, level)
            self._follow(_bootstrap._resolve_name(name, package, level) if level else name)
            return found

        # All imports that find nothing in sys.modules come here, from C as well (Python 3.9 to 3.14, import.c).
        _bootstrap._find_and_load = watched_load
        _bootstrap._gcd_import = gcd_import
        builtins.__import__ = import_
        environ.__getitem__ = watched_read  # type: ignore[method-assign]
        try:
            yield
        finally:
            _bootstrap._find_and_load = load
            builtins.__import__, _bootstrap._gcd_import = natives
            environ.__getitem__ = read  # type: ignore[method-assign]

    def blame(self, name: str, problem: str) -> None:
        self.problems.setdefault(name, problem)
        self._suspect(name)

    def settle(self) -> None:
        """Blame the modules whose threads don't end by themselves. The imports are done for now."""
        running = self._suspects.keys() & threads().keys()
        until = time.monotonic() + THREAD_SECONDS
        if running:
            # A BLAS library's threads end before a fork, in its own handler of that (pthread_atfork(3)).
            _fork_and_wait()
        while running and time.monotonic() < until:
            running = self._suspects.keys() & threads().keys()
            time.sleep(0.01)
        names = threads()
        for number in running & names.keys():
            self.blame(self._suspects[number], f"started the thread {names[number]!r}")
        self._suspects.clear()
        if not self.problems:
            self._importers.clear()

    def left_out(self) -> list[str]:
        """Returns what can't be imported before a fork: what is blamed, and what imports that."""
        found: set[str] = set()
        rest = list(self.problems)
        while rest:
            name = rest.pop()
            if name not in found:
                found.add(name)
                rest.extend(self._importers.get(name, ()))
        return sorted(found)

    def at_fork(self) -> str:
        """Returns what a fork couldn't repeat now; empty: nothing."""
        if threads():
            _fork_and_wait()
        for name in threads().values():
            return f"the warm process runs the thread {name!r}"
        for fd in descriptors() - self.open_before:
            problem = _opened(target(fd))
            if problem:
                return f"the warm process has {problem}"
        return "the warm process has started a process" if has_children() else ""

    def _look(self, name: str) -> None:
        """Find out what is new since the last look, and blame it on a module."""
        now = thread_ids()
        for number in now - self._threads:
            self._suspects[number] = name
            self._suspect(name)
        self._threads = now
        # What is listed has one descriptor more, the first that is free.
        listing = os.listdir("/proc/self/fd")
        if listing != self._listing:
            open_now = descriptors()
            for fd in open_now - self._descriptors:
                problem = _opened(target(fd))
                if problem:
                    self.blame(name, problem)
            self._listing, self._descriptors = listing, open_now
        if not self._has_children and has_children():
            self._has_children = True
            self.blame(name, "started a process")
        cuda = sys.modules.get("torch.cuda")
        if not self._has_context and cuda is not None and getattr(cuda, "_initialized", False):
            self._has_context = True
            self.blame(name, "initialized CUDA")

    def _suspect(self, name: str) -> None:
        self._importers.setdefault(name, set()).update(self._stack)
        self._follow(name)

    def _follow(self, *names: str) -> None:
        """What is being imported imports these, too."""
        for name in names:
            while name:
                if name in self._importers:
                    for importer in self._stack:
                        if importer != name:
                            self._importers[name].add(importer)
                            self._importers.setdefault(importer, set())
                name = name.rpartition(".")[0]


def _opened(of: str) -> str:
    device = of.startswith("/dev/") and not of.startswith("/dev/shm/")
    if device and of not in _HARMLESS_DEVICES:
        return f"opened {of}"
    kind = of.partition(":")[0]
    return f"opened {of if kind == 'anon_inode' else f'a {kind}'}" if kind in ("socket", "pipe", "anon_inode") else ""


def _fork_and_wait() -> None:
    pid = fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)

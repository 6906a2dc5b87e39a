"""This module imports modules, finds those that can't be imported before a fork, and decides whether to fork.

The process can no longer fork ranks if a module's import has created something that a fork can't copy (a thread, a
socket, a device, a child), or has read a rank's own environment variables. The process then still imports the remaining
modules, to find all such modules at once. The agent restarts it without them.

Each module is checked after its execution, so that the module itself is blamed, and not the package that imports it
first. The importers of a blamed module are remembered, because they can't be imported before a fork either. A module is
only blamed for a thread if the thread still runs after all imports.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from .devices import answering
from .this_process import descriptors, fork, has_children, target, thread_ids, threads

THREAD_SECONDS = 1.0
"""If a thread ends within this time after the imports, it doesn't prevent a fork."""
MOST_DRAWN = 100_000
"""The most random words that a module may draw during its import. If it draws more, it counts as having set a seed."""
_HARMLESS_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/full")
_bootstrap: Any = importlib._bootstrap


class Blame:
    """Blame collects the problems found in this process."""

    def __init__(self, own_variables: frozenset[str]) -> None:
        self._own_variables = own_variables
        self.problems: dict[str, str] = {}
        """The problem with each blamed module's import, worded to follow the module's name."""
        self._importers: dict[str, set[str]] = {}
        """The direct and indirect importers of modules that may be blamed."""
        self._suspects: dict[int, str] = {}
        """The module whose import started each thread, by thread id."""
        self._stack: list[str] = []
        """The modules that are being imported, the innermost one last."""
        self.open_before = self._descriptors = descriptors()
        """The descriptors that were open before the first import."""
        self._listing: list[str] = []
        self._threads = thread_ids()
        self._has_children = has_children()
        self._has_context = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Check each module imported in this block, and its reads of the environment."""
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
                # Importing a module imports its package first.
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

        # Every import of a module that isn't in sys.modules calls this function, even from C (Python 3.9 to 3.14,
        # import.c).
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
        """After the imports, blame the modules whose threads don't end by themselves."""
        running = self._suspects.keys() & threads().keys()
        until = time.monotonic() + THREAD_SECONDS
        if running:
            # A BLAS library ends its threads before a fork, in its own handler (pthread_atfork(3)).
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
        """Returns the modules that can't be imported before a fork: blamed modules and their importers."""
        found, rest = set(self.problems), list(self.problems)
        for name in rest:
            new = self._importers.get(name, set()) - found
            found |= new
            rest.extend(new)
        return sorted(found)

    def at_fork(self) -> str:
        """Returns what prevents a fork now; empty if nothing does."""
        if threads():
            _fork_and_wait()
        found = [f"runs the thread {name!r}" for name in threads().values()]
        found += [f"has {problem}" for problem in _opened(descriptors() - self.open_before)]
        found += ["has started a process"] if has_children() else []
        return f"the warm process {found[0]}" if found else ""

    def _look(self, name: str) -> None:
        """Find changes since the last check, and blame them on a module."""
        now = thread_ids()
        for number in now - self._threads:
            self._suspects[number] = name
            self._suspect(name)
        self._threads = now
        # This listing contains its own descriptor, the first free one, so two listings are compared.
        listing = os.listdir("/proc/self/fd")
        if listing != self._listing:
            open_now = descriptors()
            for problem in _opened(open_now - self._descriptors):
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
        """Record that the modules being imported also import these modules."""
        for name in names:
            while name:
                if name in self._importers:
                    importers = set(self._stack) - {name}
                    self._importers[name] |= importers
                    for importer in importers:
                        self._importers.setdefault(importer, set())
                name = name.rpartition(".")[0]


def _opened(fds: set[int]) -> Iterator[str]:
    for opened in map(target, fds):
        kind = opened.partition(":")[0]
        device = opened.startswith("/dev/") and not opened.startswith("/dev/shm/")
        if kind in ("socket", "pipe"):
            yield f"opened a {kind}"
        elif kind == "anon_inode" or (device and opened not in _HARMLESS_DEVICES):
            yield f"opened {opened}"


def _fork_and_wait() -> None:
    pid = fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


class Imports:
    """Imports keeps track of the imported modules, and of the state before them."""

    def __init__(self, config: dict[str, Any], native: frozenset[str]) -> None:
        self._path: str = config["path"]
        self._left_out = frozenset(config["leftOut"])
        self._native = native
        self._users: dict[str, tuple[int, int]] = {}
        """The version of each module's file at its import, for modules outside the image's packages."""
        self.blame = Blame(frozenset(config["ownVariables"]))

    def is_missing(self, name: str) -> bool:
        """Returns whether a learned name can be imported and hasn't been yet."""
        return name not in sys.modules and name not in self._left_out and _is_packaged(name)

    def add(self, name: str, *, required: bool, users: bool) -> None:
        """Import a module, and blame any module that can't be imported before a fork.

        `required`: whether an import's error is raised. `users`: whether the module may be among the user's files; an
        error is then printed for the user.
        """
        if name in self._left_out or name in sys.modules:
            return
        before, random_states = set(sys.modules), _random_states()
        try:
            with self.blame.watching(), answering():
                _import(name, [self._path, *sys.path] if users and self._path else sys.path)
        except BaseException as error:
            if required:
                raise
            if users:
                problem = describe_error(error)
                print(f"spec.warmStart.preload: {name!r} cannot be imported: {problem}", file=sys.stderr, flush=True)
        now, new = _random_states(), set(sys.modules) - before
        if any(not _follows(state, now[of]) for of, state in random_states.items()):
            # Ranks are seeded anyway, so a seed that a module has set would be lost. Any of these modules may have set
            # the seed.
            for each in (name, *new):
                self.blame.blame(each, "seeded random numbers")
        for each in new:
            path = getattr(sys.modules.get(each), "__file__", None)
            if isinstance(path, str) and not is_package_path(path):
                self._users[path] = _version(path)

    def lacks(self, name: str, error: BaseException) -> bool:
        """Returns whether an error means that this module exists neither in packages nor among the user's files."""
        beside = os.path.join(self._path, name)
        is_users = bool(self._path) and (os.path.isdir(beside) or os.path.isfile(f"{beside}.py"))
        return isinstance(error, ModuleNotFoundError) and error.name == name and not is_users

    def outdated(self) -> str:
        """Returns a message about a user's file that a rank would import differently now; empty if there is none."""
        changed = (path for path, version in self._users.items() if _version(path) != version)
        return self._shadowed() or next((f"{path} has changed since it was imported" for path in changed), "")

    def _shadowed(self) -> str:
        """Returns a message about a user's file that has an imported module's name; empty if there is none."""
        if not self._path:
            return ""
        names = {name.partition(".")[0] for name in set(sys.modules) - self._native}
        try:
            entries = os.listdir(self._path)
        except OSError:
            return ""
        for entry in entries:
            name, dot, suffix = entry.partition(".")
            if name not in names or (dot and suffix not in ("py", "pyc", "so") and not suffix.endswith(".so")):
                continue
            path = os.path.join(self._path, entry)
            if not dot and not os.path.exists(os.path.join(path, "__init__.py")):
                continue
            loaded = getattr(sys.modules.get(name), "__file__", None) or ""
            if os.path.dirname(loaded) != (self._path if dot else path):
                return f"{path} has the name of a module that is imported already"
        return ""


def describe_error(error: BaseException) -> str:
    """Describes an import's error in one line."""
    return f"{type(error).__name__}: {str(error)[:200]}"


def _import(name: str, path: list[str]) -> None:
    before = list(sys.path)
    sys.path[:] = path
    try:
        __import__(name)
    finally:
        # The entries that the import itself has added to sys.path stay, as they would in a rank.
        added = [entry for entry in sys.path if entry not in path]
        sys.path[:] = [*before, *added]


def _random_states() -> dict[str, Any]:
    """Returns the states of the random generators that seed themselves from the system, as far as they exist."""
    states: dict[str, Callable[[Any], Any]] = {
        "random": lambda module: module.getstate(),
        "numpy.random": lambda module: module.get_state(legacy=False)["state"]["key"].tobytes(),
        "torch.random": lambda module: module.initial_seed(),
    }
    return {name: state(sys.modules[name]) for name, state in states.items() if sys.modules.get(name) is not None}


def _follows(before: Any, now: Any) -> bool:
    """Returns whether the generator has only drawn numbers between the two states, without being seeded.

    Python's generator (`random`, a Mersenne Twister) uses 624 words, and then computes the next 624 words from them.
    The state's last value is the number of used words.
    """
    if before == now:
        return True
    if not isinstance(before, tuple):
        return False
    from random import Random

    generator = Random()
    words = before[1][:-1]
    for _ in range(MOST_DRAWN // len(words)):
        if words == now[1][:-1]:
            return True
        generator.setstate((before[0], (*words, len(words)), None))
        generator.getrandbits(32)
        words = generator.getstate()[1][:-1]
    return False


def packaged_modules() -> list[str]:
    """Returns the imported modules of the image's packages and of Python itself, in the order of import.

    The user's own modules are left out, so that each attempt reads their files again.
    """
    names = []
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        path = getattr(spec, "origin", None)
        if getattr(spec, "name", "") == name and isinstance(path, str) and is_package_path(path):
            names.append(name)
    return names


def is_package_path(path: str) -> bool:
    """Returns whether a file belongs to an installed package or Python itself, not to the user."""
    packaged = not {"site-packages", "dist-packages"}.isdisjoint(path.split(os.sep))
    return packaged or path.startswith(os.path.dirname(os.__file__) + os.sep)


def _is_packaged(name: str) -> bool:
    """Returns whether a name would be imported from an installed package or Python itself."""
    from importlib.util import find_spec

    spec = None
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        spec = find_spec(name.partition(".")[0])
    if spec is None:
        return False
    paths = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or ())
    return all(isinstance(path, str) and is_package_path(os.path.join(path, "")) for path in paths)


def _version(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)

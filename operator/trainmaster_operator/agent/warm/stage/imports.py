"""Modules are imported before a fork, and what of them a fork can't repeat is found out.

A module whose import does something that can't be forked (a thread, a socket, a device, a child), or that reads what is
each rank's own in the environment, can't be taken back. The process then forks nothing any more: it imports the rest to
learn of all such modules at once, and is started again without them.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from .blame import Blame
from .devices import answering

MOST_DRAWN = 100_000
"""Words that a module may draw at its import; one that draws more counts as one that has seeded."""


class Imports:
    """Imports knows what was imported, and what there was before."""

    def __init__(self, config: dict[str, Any], native: frozenset[str]) -> None:
        self._path: str = config["path"]
        """What Python will put first on sys.path."""
        self._left_out = frozenset(config["leftOut"])
        self._native = native
        self._users: dict[str, tuple[int, int]] = {}
        """Files of modules that are no packages' of the image, as they were when they were imported."""
        self.blame = Blame(frozenset(config["ownVariables"]))

    def is_missing(self, name: str) -> bool:
        """Returns whether a learned name can be imported and isn't yet."""
        return name not in sys.modules and name not in self._left_out and _is_packaged(name)

    def add(self, name: str, *, required: bool, users: bool) -> None:
        """Import a module, and blame whatever can't be imported before a fork.

        `required`: an error is raised. `users`: the module may lie where the user's program does, and an error is the
        user's to know.
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
            # Ranks are seeded anew, so that what a module has seeded would be lost. Any of them may have done it.
            for each in (name, *new):
                self.blame.blame(each, "seeded random numbers")
        self._remember_files(new)

    def _remember_files(self, names: set[str]) -> None:
        for name in names:
            path = getattr(sys.modules.get(name), "__file__", None)
            if isinstance(path, str) and not is_package_path(path):
                self._users[path] = _version(path)

    def lacks(self, name: str, error: BaseException) -> bool:
        """Returns whether an error says that nobody has this module, the user's program included."""
        if not isinstance(error, ModuleNotFoundError) or error.name != name:
            return False
        beside = os.path.join(self._path, name)
        return not self._path or not (os.path.isdir(beside) or os.path.isfile(f"{beside}.py"))

    def outdated(self) -> str:
        """Returns which of the user's files a rank would read otherwise than they were imported; empty: none."""
        return self._shadowed() or self._changed()

    def _shadowed(self) -> str:
        """Returns which of the user's files would be imported by a name that is imported already."""
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

    def _changed(self) -> str:
        """Returns which file was edited since it was imported."""
        for path, version in self._users.items():
            if _version(path) != version:
                return f"{path} has changed since it was imported"
        return ""


def describe_error(error: BaseException) -> str:
    """Returns an import's error in a line."""
    return f"{type(error).__name__}: {str(error)[:200]}"


def _import(name: str, path: list[str]) -> None:
    before = list(sys.path)
    sys.path[:] = path
    try:
        __import__(name)
    finally:
        # What the import itself has added stays, as it would in a rank.
        added = [entry for entry in sys.path if entry not in path]
        sys.path[:] = [*before, *added]


def _random_states() -> dict[str, Any]:
    """Returns the states of the random generators that a start seeds from the system, as far as they are there."""
    modules: list[Any] = [sys.modules.get(name) for name in ("random", "numpy.random", "torch.random")]
    random, numpy, torch = modules
    states: dict[str, Any] = {}
    if random is not None:
        states["random"] = random.getstate()
    if numpy is not None:
        states["numpy"] = numpy.get_state(legacy=False)["state"]["key"].tobytes()
    if torch is not None:
        states["torch"] = torch.initial_seed()
    return states


def _follows(before: Any, now: Any) -> bool:
    """Returns whether a state has come from another one by drawing numbers, and not by a seed.

    Python's generator draws 624 words and then makes the next ones of them (`random`, a Mersenne Twister), whose number
    is the state's last.
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
    """Returns the names of the imported modules of the image's packages and of Python's own, in the order of import.

    The user's own code is left out, so that it is read anew by each attempt.
    """
    names = []
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        path = getattr(spec, "origin", None)
        if getattr(spec, "name", "") == name and isinstance(path, str) and is_package_path(path):
            names.append(name)
    return names


def is_package_path(path: str) -> bool:
    """Returns whether a file is an installed package's or Python's own, and not the user's."""
    parts = path.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    return path.startswith(os.path.dirname(os.__file__) + os.sep)


def _is_packaged(name: str) -> bool:
    """Returns whether a name would be imported from an installed package, or is Python's own."""
    from importlib.util import find_spec

    try:
        spec = find_spec(name.partition(".")[0])
    except (ImportError, ValueError, AttributeError):
        return False
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

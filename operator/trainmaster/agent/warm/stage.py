"""The stage is what the warm process runs before `__main__` exists: the file that it imports as `sitecustomize`.

It runs in the job's own Python, of whatever version from 3.9 on, and imports nothing of the agent. The warm process
imports what it is told to, one module after the other, and forks ranks when it is ordered to. In a rank `enter`
returns, `sitecustomize` is imported again, now the image's own where there is one, and the interpreter goes on.

A module whose import does something that can't be forked (a thread, a socket, a device, a child), or that reads what is
each rank's own in the environment, can't be taken back: the process names it and ends, and is started without it.

The channel is a stream of JSON objects, one a line. The agent sends `fork` and `import`; the warm process answers with
`ready`, `forked`, `refused`, `imported` and `unforkable`. It ends when the channel does.
"""

from __future__ import annotations

import sys

NATIVE = frozenset(sys.modules)
"""What Python had imported by itself."""

import gc  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import stat  # noqa: E402
import time  # noqa: E402
from typing import Any, NoReturn  # noqa: E402

VARIABLE = "TRAINMASTER_WARM"
"""Names the file with what the warm process is told at its start; taken out of the environment at once."""
MARK = "TRAINMASTER_ATTEMPT"
"""By this in what /proc shows of its environment the agent's next life finds the process."""
PROBE = "probe"
"""The value that asks whether this Python imports the stage at all."""
EXIT_PROBED = 77
CHANNEL = 3
"""The descriptor of the channel."""
LEARN_SIGNAL = signal.SIGRTMAX - 3
"""Asks a rank for its modules; the agent checks first that it is caught."""
OOM_SCORE = 800
"""What is added to the warm process's chance to be taken first where memory is short (proc(5), oom_score_adj)."""
MASTER_SECONDS = 0.25
"""How long a rank waits for rank 0 to listen; a program that makes its group later, or none, starts so much later."""
MOST_DRAWN = 100_000
"""Words that a module may draw at its import; one that draws more counts as one that has seeded."""
_HARMLESS_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/full")
_MODULE = "sitecustomize"


def enter() -> None:
    """Run the stage. Returns only in a rank, where nothing of the stage is left."""
    told = os.environ.pop(VARIABLE, "")
    os.environ.pop(MARK, None)
    if told == PROBE:
        os._exit(EXIT_PROBED)
    folder = os.path.dirname(os.path.abspath(__file__))
    _leave_path(folder)
    if told:
        # Whatever goes wrong, this process must not become the user's program by itself.
        try:
            with open(told, encoding="utf-8") as file:
                config = json.load(file)
            _restore_variable("PYTHONPATH", config["pythonPath"])
            WarmProcess(config).serve()
        except BaseException:
            _end_with_traceback()
    # The image's own, where there is one. Where there is none, the error is what `site` expects of that.
    sys.modules.pop(_MODULE, None)
    __import__(_MODULE)


def _leave_path(folder: str) -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    sys.path_importer_cache.pop(folder, None)


def _restore_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _end_with_traceback() -> NoReturn:
    import traceback

    traceback.print_exc()
    sys.stderr.flush()
    os._exit(70)


class WarmProcess:
    """See the module."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._path: str = config["path"]
        """What Python will put first on sys.path."""
        self._own_variables = frozenset(config["ownVariables"])
        """The variables that are each rank's own."""
        self._left_out = set(config["leftOut"])
        self._required: list[str] = list(config["required"])
        self._preload: list[str] = list(config["preload"])
        self._later: list[str] = list(config["later"])
        self._received = b""
        self._imported: list[str] = []
        """Learned names that weren't there when their turn came."""
        self._users: dict[str, tuple[int, int]] = {}
        """Files of modules that are no packages' of the image, as they were when they were imported."""
        self._folder = os.getcwd()
        self._umask = os.umask(0)
        os.umask(self._umask)
        self._descriptors = _descriptors()
        self._oom_score = _read("/proc/self/oom_score_adj")
        os.set_inheritable(CHANNEL, False)

    def serve(self) -> None:
        """Import and fork as ordered. Returns only in a rank."""
        _write("/proc/self/oom_score_adj", str(min(1000, int(self._oom_score or 0) + OOM_SCORE)))
        for name in self._required:
            self._import(name, required=True)
        for name in self._preload:
            self._import(name, users=True)
        gc.collect()
        self._send({"type": "ready"})
        while True:
            order = self._receive(wait=not self._later)
            if order is None:
                self._import_later()
            elif order["type"] == "fork":
                if self._fork(order):
                    return
            elif order["type"] == "import":
                with open(order["path"], encoding="utf-8") as file:
                    self._later.extend(json.load(file))

    # Imports

    def _import_later(self) -> None:
        name = self._later.pop(0)
        if name not in sys.modules and name not in self._left_out and _is_packaged(name):
            self._import(name)
            self._imported.append(name)
        if not self._later:
            # So that ranks have less to collect, and copy, of what was imported.
            gc.collect()
            self._send({"type": "imported", "names": self._imported})

    def _import(self, name: str, *, required: bool = False, users: bool = False) -> None:
        if name in self._left_out or name in sys.modules:
            return
        before, random_states = set(sys.modules), _random_states()
        reads: set[str] = set()
        try:
            with_path = [self._path, *sys.path] if users and self._path else sys.path
            _import_watched(name, with_path, self._own_variables, reads)
        except BaseException as error:
            problem = f"{type(error).__name__}: {str(error)[:200]}"
            if required:
                self._give_up(name, problem)
            if users:
                print(f"spec.warmStart.preload: {name!r} cannot be imported: {problem}", file=sys.stderr, flush=True)
        now = _random_states()
        if reads:
            self._give_up(name, f"it reads {sorted(reads)[0]} at import")
        if any(not _follows(state, now[of]) for of, state in random_states.items()):
            # Ranks are seeded anew, so that what a module has seeded would be lost.
            self._give_up(name, "it seeds random numbers at import")
        unforkable = self._unforkable()
        if unforkable:
            self._give_up(name, unforkable)
        self._remember_files(set(sys.modules) - before)

    def _give_up(self, name: str, problem: str) -> NoReturn:
        self._send({"type": "unforkable", "name": name, "problem": problem})
        os._exit(0)

    def _remember_files(self, names: set[str]) -> None:
        for name in names:
            path = getattr(sys.modules.get(name), "__file__", None)
            if isinstance(path, str) and not is_package_path(path):
                self._users[path] = _version(path)

    # Orders

    def _receive(self, wait: bool) -> dict[str, Any] | None:
        while b"\n" not in self._received:
            if not wait and not select.select([CHANNEL], [], [], 0)[0]:
                return None
            data = os.read(CHANNEL, 1 << 20)
            if not data:
                os._exit(0)
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        order: dict[str, Any] = json.loads(line)
        return order

    def _send(self, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode() + b"\n"
        while data:
            data = data[os.write(CHANNEL, data) :]

    # Forks

    def _fork(self, order: dict[str, Any]) -> bool:
        """Fork an attempt's ranks; True in a rank."""
        reason = self._unforkable() or self._shadowed() or self._changed()
        if reason:
            self._send({"type": "refused", "attempt": order["attempt"], "reason": reason})
            return False
        _flush()
        try:
            pid = os.fork()
        except OSError as error:
            self._send({"type": "refused", "attempt": order["attempt"], "reason": f"cannot fork: {error.strerror}"})
            return False
        if pid == 0:
            # Ranks are forked from a process that leaves at once, so that they become the agent's own children.
            return self._fork_ranks(order)
        _, status = os.waitpid(pid, 0)
        if status == 0:
            self._send({"type": "forked", "attempt": order["attempt"]})
        else:
            self._send({"type": "refused", "attempt": order["attempt"], "reason": "cannot fork all ranks"})
        return False

    def _fork_ranks(self, order: dict[str, Any]) -> bool:
        between = os.getpid()
        go_read, go_write = os.pipe()
        announced = []
        for rank in order["ranks"]:
            try:
                pid = os.fork()
            except OSError:
                # The ranks that are there end: nobody will ever let them go.
                os._exit(1)
            if pid == 0:
                os.close(go_write)
                self._become(order, rank)
                # Before its pid was announced, and before the agent is its parent, a rank does nothing.
                if not os.read(go_read, 1):
                    os.kill(os.getpid(), signal.SIGKILL)
                os.close(go_read)
                while os.getppid() == between:
                    time.sleep(0.0001)
                _give_way_to_master(rank["environ"])
                return True
            announced.append(f"{rank['localRank']} {pid}\n")
        fd = os.open(order["announcements"], os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, "".join(announced).encode())
        os.write(go_write, b"." * len(announced))
        os._exit(0)

    def _become(self, order: dict[str, Any], rank: dict[str, Any]) -> None:
        """Make of this process what the launcher would have started."""
        os.setsid()
        os.close(CHANNEL)
        for fd, path in ((1, rank["stdout"]), (2, rank["stderr"])):
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            os.dup2(opened, fd)
            os.close(opened)
        for fd in _descriptors() - self._descriptors:
            _reopen(fd)
        for name in self._own_variables:
            os.environ.pop(name, None)
        os.environ.update(rank["environ"])
        os.chdir(self._folder)
        os.umask(self._umask)
        _write("/proc/self/oom_score_adj", self._oom_score)
        _start_anew()
        if order["modulesFile"]:
            listen_for_learning(f"{order['modulesFile']}.{rank['localRank']}")

    # Whether ranks may be forked

    def _unforkable(self) -> str:
        """Returns what of this process a fork can't repeat; empty: nothing."""
        if _threads() > 1:
            # A BLAS library's threads end before a fork, in its own handler of that (pthread_atfork(3)).
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            if _threads() > 1:
                return "it runs a thread" if _threads() == 2 else f"it runs {_threads() - 1} threads"
        for fd in _descriptors() - self._descriptors:
            target = _target(fd)
            device = target.startswith("/dev/") and not target.startswith("/dev/shm/")
            if target.startswith(("socket:", "pipe:", "anon_inode:")) or (device and target not in _HARMLESS_DEVICES):
                return f"it has {target.split(':')[0]} open"
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return "it has started a process"
        except ChildProcessError:
            pass
        cuda = sys.modules.get("torch.cuda")
        if cuda is not None and cuda.is_initialized():
            return "it has a CUDA context"
        return ""

    def _shadowed(self) -> str:
        """Returns which of the user's files would be imported by a name that is imported already."""
        if not self._path:
            return ""
        names = {name.partition(".")[0] for name in set(sys.modules) - NATIVE}
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


def _give_way_to_master(environ: dict[str, str]) -> None:
    """Wait a moment for rank 0 to listen: forked ranks are all there within milliseconds, and a client of torch's store
    that comes too early tries again after half a second or more (torch 2.13, TCPStore.cpp).
    """
    import socket

    until = time.monotonic() + MASTER_SECONDS
    while environ["RANK"] != "0" and time.monotonic() < until:
        try:
            socket.create_connection((environ["MASTER_ADDR"], int(environ["MASTER_PORT"])), MASTER_SECONDS).close()
        except OSError:
            time.sleep(0.005)
        else:
            return


def _import_watched(name: str, path: list[str], variables: frozenset[str], reads: set[str]) -> None:
    """Import a module, with what is read of some variables of the environment meanwhile put into `reads`."""
    environ = type(os.environ)
    native = environ.__getitem__

    def watched(self: Any, key: Any) -> Any:
        text = os.fsdecode(key) if isinstance(key, (str, bytes)) else ""
        if text in variables:
            reads.add(text)
        return native(self, key)

    before = list(sys.path)
    sys.path[:] = path
    environ.__getitem__ = watched  # type: ignore[method-assign]
    try:
        __import__(name)
    finally:
        environ.__getitem__ = native  # type: ignore[method-assign]
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


def _start_anew() -> None:
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


def _descriptors() -> set[int]:
    found = set(map(int, os.listdir("/proc/self/fd")))
    return {fd for fd in found if _target(fd)}


def _target(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def _reopen(fd: int) -> None:
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


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _version(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    if not text:
        return
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    except OSError:
        # A sandbox without it: then there is nothing to set back either.
        return


if __name__ == _MODULE:
    enter()

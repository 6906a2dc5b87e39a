"""The shim is the parent of containers: it starts them, reaps everything below them, and leaves nothing behind.

Run as a file by `runtime.ProcessRuntime` (`python -I -S shim.py <fd> [<lock>]`), with only the standard library loaded,
so that a fork costs a millisecond. It speaks NDJSON on the socket `<fd>`:

    -> {"op": "start", "id", "argv", "env", "cwd", "log", "memory", "capture"}     <- started | failed, later exited
    -> {"op": "signal", "id", "signal", "all"}

For each container it forks a *monitor*, which makes itself the subreaper of its descendants (prctl(2)
PR_SET_CHILD_SUBREAPER), so a daemon that forks twice still belongs to the container. When the container's first process
ends, the monitor kills all others, as the end of PID 1 ends a PID namespace (pid_namespaces(7)). When the kubelet's
process is gone, even by SIGKILL, the sockets reach their end and each monitor kills its container. When a monitor is
killed, this process inherits its orphans and kills them.

This process and the monitors hold the open file `<lock>`, and no container does, so a lock on it (flock(2)) lasts until
the last container has ended.

Output is written in the kubelet's own log format (CRI: time, stream, F or P, text), rotated by size.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import selectors
import signal
import socket
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LINE_LIMIT = 16 * 1024  # containerd splits longer lines into partial ones
LOG_BYTES = 10 * 1024 * 1024  # the kubelet's containerLogMaxSize
LOG_FILES = 5  # and containerLogMaxFiles
CAPTURE_BYTES = 10 * 1024  # the kubelet reads this much of a probe's output
GIBIBYTE = 1 << 30
KCMP = {"x86_64": 312, "aarch64": 272}.get(os.uname().machine)  # the system call's number
KCMP_VM = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def descendants(pid: int) -> list[int]:
    """Returns all processes below `pid`, parents first. Processes that end during the search are left out."""
    found: list[int] = []
    todo = [pid]
    while todo:
        parent = todo.pop()
        try:
            threads = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        for thread in threads:
            try:
                with open(f"/proc/{parent}/task/{thread}/children", "rb") as file:
                    children = [int(child) for child in file.read().split()]
            except OSError:
                continue
            found += children
            todo += children
    return found


def uses_more(pids: list[int], limit: int) -> bool:
    """Returns whether processes use more memory [bytes] than `limit`, counted as a memory cgroup does."""
    # Adding up the resident memory of each process takes microseconds, but counts pages that forks share several times.
    return _resident_bytes(pids) > limit and _anonymous_bytes(pids) > limit


def _resident_bytes(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                fields = file.read().split()
        except OSError:
            continue
        total += (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
    return total


def _anonymous_bytes(pids: list[int]) -> int:
    """Returns the memory that isn't backed by files; forked processes' shared pages count once.

    A child of vfork(2) shares its parent's memory until it runs its program, so it isn't counted.
    """
    total = 0
    counted: list[int] = []
    for pid in pids:
        if any(_same_memory(pid, other) for other in counted):
            continue
        try:
            with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
                lines = [line.split() for line in file]
        except OSError:
            continue
        counted.append(pid)
        total += sum(int(line[1]) for line in lines if line[0] == b"Pss_Anon:") * 1024
    return total


def _same_memory(pid: int, other: int) -> bool:
    """Returns whether two processes share an address space (kcmp(2)); False if the kernel can't tell."""
    return KCMP is not None and _libc.syscall(KCMP, pid, other, KCMP_VM, 0, 0) == 0


def catches(pid: int, number: int) -> bool:
    """Returns whether a process has a handler for a signal.

    The first process of a container is PID 1 of its PID namespace, to which the kernel doesn't deliver signals without
    a handler (pid_namespaces(7)): SIGTERM doesn't end a plain `sleep`.
    """
    try:
        with open(f"/proc/{pid}/status") as file:
            mask = next((int(line.split()[1], 16) for line in file if line.startswith("SigCgt:")), 0)
    except OSError:
        return False
    return bool(mask >> (number - 1) & 1)


class Log:
    """A container's log file is in CRI format. A line longer than 16 KiB is written in parts, all but the last marked
    P."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._rest: dict[str, bytes] = {}
        self._open()

    def _open(self) -> None:
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - lives as long as the monitor
        self._size = self._file.tell()

    def feed(self, stream: str, data: bytes) -> None:
        lines = (self._rest.get(stream, b"") + data).split(b"\n")
        self._rest[stream] = lines.pop()
        out = []
        # A long line is always split, even if it arrived at once.
        for line in lines:
            while len(line) > LINE_LIMIT:
                out.append(self._entry(stream, line[:LINE_LIMIT], b"P"))
                line = line[LINE_LIMIT:]
            out.append(self._entry(stream, line, b"F"))
        while len(self._rest[stream]) >= LINE_LIMIT:
            out.append(self._entry(stream, self._rest[stream][:LINE_LIMIT], b"P"))
            self._rest[stream] = self._rest[stream][LINE_LIMIT:]
        self._write(b"".join(out))

    def end(self, stream: str) -> None:
        rest = self._rest.pop(stream, b"")
        if rest:
            self._write(self._entry(stream, rest, b"P"))

    def _entry(self, stream: str, line: bytes, tag: bytes) -> bytes:
        seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{nanoseconds:09d}Z"
        return f"{stamp} {stream} ".encode() + tag + b" " + line + b"\n"

    def _write(self, data: bytes) -> None:
        if not data:
            return
        # A full disk must not end the container: its output is lost, as with containerd.
        with contextlib.suppress(OSError):
            self._file.write(data)
        self._size += len(data)
        if self._size > LOG_BYTES:
            self._rotate()

    def _rotate(self) -> None:
        self._file.close()
        for number in range(LOG_FILES - 1, 0, -1):
            source = self.path if number == 1 else f"{self.path}.{number - 1}"
            with contextlib.suppress(FileNotFoundError):
                os.replace(source, f"{self.path}.{number}")
        self._open()


class Monitor:
    """The monitor runs one container to its end, in its own process; `run` never returns."""

    def __init__(self, control: socket.socket, request: dict[str, object]) -> None:
        self._control = control
        self._request = request
        self._selector = selectors.DefaultSelector()
        self._log = Log(str(request["log"])) if request.get("log") else None
        self._captured = b""
        self._memory = int(str(request.get("memory") or 0))
        self._out_of_memory = False
        self._pid = 0
        self._status: int | None = None
        self._orphaned = False

    def run(self) -> None:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        try:
            streams = self._spawn()
        except OSError as error:
            self._report({"event": "failed", "errno": error.errno, "error": os.strerror(error.errno or 0)})
            os._exit(0)
        self._report({"event": "started", "pid": self._pid, "at": time.time()})
        self._selector.register(wake_read, selectors.EVENT_READ, "wake")
        self._selector.register(self._control, selectors.EVENT_READ, "control")
        for name, descriptor in streams.items():
            self._selector.register(descriptor, selectors.EVENT_READ, name)
        self._loop(wake_read, set(streams.values()))

    def _spawn(self) -> dict[str, int]:
        request = self._request
        argv = [str(word) for word in request["argv"]]  # type: ignore[attr-defined]
        env = {str(k): str(v) for k, v in request["env"].items()}  # type: ignore[attr-defined]
        cwd = str(request["cwd"])
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        fault_read, fault_write = os.pipe2(os.O_CLOEXEC)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.setsid()
                _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                signal.set_wakeup_fd(-1)
                for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
                    signal.signal(number, signal.SIG_DFL)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(out_write, 1)
                os.dup2(err_write, 2)
                os.chdir(cwd)
                # /proc/self/oom_score_adj: a container is killed before the control plane, as under Kubernetes.
                with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
                    file.write("500")
                os.execvpe(argv[0], argv, env)
            except OSError as error:
                os.write(fault_write, str(error.errno or errno.EIO).encode())
            finally:
                os._exit(127)
        for descriptor in (out_write, err_write, fault_write):
            os.close(descriptor)
        fault = os.read(fault_read, 16)
        os.close(fault_read)
        if fault:
            os.waitpid(self._pid, 0)
            raise OSError(int(fault), os.strerror(int(fault)))
        return {"stdout": out_read, "stderr": err_read}

    def _loop(self, wake: int, streams: set[int]) -> None:
        interval = 0.1 if self._memory > GIBIBYTE else 0.02
        family: list[int] = []
        rounds = 0
        drain_until = 0.0
        while True:
            timeout = interval if self._memory and self._status is None else None
            if self._status is not None:
                timeout = max(0.0, drain_until - time.monotonic())
                if not streams or timeout == 0.0:
                    break
            for key, _ in self._selector.select(timeout):
                if key.data == "wake":
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake, 4096)
                elif key.data == "control":
                    self._command()
                else:
                    self._output(key.fd, str(key.data), streams)
            self._reap()
            if self._status is not None and not drain_until:
                self._kill_all()
                # All writers are dead, so the rest of the pipes can be read at once.
                drain_until = time.monotonic() + 2.0
            elif self._memory and self._status is None:
                if rounds % 5 == 0:
                    family = descendants(os.getpid())
                rounds += 1
                if uses_more(family, self._memory):
                    self._out_of_memory = True
                    self._kill_all()
        self._finish()

    def _output(self, descriptor: int, stream: str, streams: set[int]) -> None:
        data = os.read(descriptor, 65536)
        if not data:
            self._selector.unregister(descriptor)
            os.close(descriptor)
            streams.discard(descriptor)
            if self._log:
                self._log.end(stream)
        elif self._log:
            self._log.feed(stream, data)
        elif len(self._captured) < CAPTURE_BYTES:
            self._captured += data[: CAPTURE_BYTES - len(self._captured)]

    def _command(self) -> None:
        try:
            data = self._control.recv(65536)
        except OSError:
            data = b""
        if not data:
            # The kubelet is gone, so nobody needs the exit status.
            self._selector.unregister(self._control)
            self._orphaned = True
            self._kill_all()
            return
        for line in data.splitlines():
            request = json.loads(line)
            if request["all"]:
                self._kill_all()
            elif catches(self._pid, int(request["signal"])):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, int(request["signal"]))

    def _reap(self) -> None:
        """Collects ended children and keeps the status of the container's first process."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._status = status

    def _kill_all(self) -> None:
        while family := descendants(os.getpid()):
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            if descendants(os.getpid()):
                time.sleep(0.005)

    def _finish(self) -> None:
        status = self._status or 0
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        self._report(
            {
                "event": "exited",
                "code": 128 + number if number else os.WEXITSTATUS(status),
                "signal": number,
                "oom": self._out_of_memory,
                "output": self._captured.decode(errors="replace"),
                "at": time.time(),
            }
        )
        os._exit(0)

    def _report(self, event: dict[str, object]) -> None:
        if not self._orphaned:
            with contextlib.suppress(OSError):
                self._control.sendall(json.dumps(event).encode() + b"\n")


class Shim:
    """The parent of all monitors passes requests down and events up."""

    def __init__(self, upstream: socket.socket) -> None:
        self._upstream = upstream
        self._buffer = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(upstream, selectors.EVENT_READ, "")
        self._monitors: dict[str, tuple[socket.socket, int]] = {}
        self._buffers: dict[str, bytes] = {}

    def run(self) -> None:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Ctrl-C reaches the whole terminal group; the cluster decides when containers end.
            signal.signal(ignored, signal.SIG_IGN)
        while True:
            for key, _ in self._selector.select():
                if key.data == "":
                    if not self._requests():
                        return self._close()
                else:
                    self._events(key.data)
            self._sweep()

    def _requests(self) -> bool:
        data = self._upstream.recv(1 << 20)
        if not data:
            return False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if request["op"] == "start":
                self._start(request)
            elif request["id"] in self._monitors:
                with contextlib.suppress(OSError):
                    self._monitors[request["id"]][0].sendall(line + b"\n")
        return True

    def _start(self, request: dict[str, object]) -> None:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                self._upstream.close()
                ours.close()
                for other, _ in self._monitors.values():
                    other.close()
                self._selector.close()
                Monitor(theirs, request).run()
            except BaseException as error:
                sys.stderr.write(f"monitor of {request['id']}: {error!r}\n")
            finally:
                os._exit(1)
        theirs.close()
        identity = str(request["id"])
        self._monitors[identity] = (ours, pid)
        self._buffers[identity] = b""
        self._selector.register(ours, selectors.EVENT_READ, identity)

    def _events(self, identity: str) -> None:
        monitor, pid = self._monitors[identity]
        try:
            data = monitor.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(monitor)
            monitor.close()
            del self._monitors[identity], self._buffers[identity]
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            # This has no effect if the exit was already reported; a killed monitor has reported nothing.
            self._report({"event": "lost", "id": identity, "at": time.time()})
            return
        *lines, self._buffers[identity] = (self._buffers[identity] + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            event["id"] = identity
            self._report(event)

    def _sweep(self) -> None:
        """Kills the orphans of killed monitors, which are our children but no monitors."""
        known = {pid for _, pid in self._monitors.values()}
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            strays = {int(pid) for pid in file.read().split()} - known
        for pid in strays:
            for descendant in [pid, *descendants(pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(descendant, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def _report(self, event: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            self._upstream.sendall(json.dumps(event).encode() + b"\n")

    def _close(self) -> None:
        for monitor, _ in self._monitors.values():
            monitor.close()
        for _, pid in self._monitors.values():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    for lock in sys.argv[2:]:
        os.set_inheritable(int(lock), False)
    Shim(socket.socket(fileno=int(sys.argv[1]))).run()

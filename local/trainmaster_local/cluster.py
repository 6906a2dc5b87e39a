"""Runs the local cluster as a separate process: `up`, `down`, `status`.

A running cluster holds a lock (flock(2)) on a file in its state folder, which the kernel releases when the process
ends, however it ends. So a killed cluster never seems to be running. The cluster's description (`ClusterInfo`) is in
`cluster.json` beside the lock.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import fcntl
import json
import logging
import os
import pkgutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from trainmaster_local import devices
from trainmaster_local.config import ClusterConfig, NodeConfig, machine_nodes
from trainmaster_local.private import LOCK, private_folder

START_SECONDS = 60.0
STOP_SECONDS = 20.0

INFO, LOG = "cluster.json", "cluster.log"
_ERROR = "error: "


class LocalClusterError(Exception):
    """The cluster can't be started or stopped; the text gives the reason and the remedy."""


@dataclass(frozen=True)
class ClusterInfo:
    """This describes a running cluster.

    `server` is its URL, `kubeconfig` a file for its administrator, `gpus` a sentence about its nodes' devices.
    """

    pid: int
    server: str
    kubeconfig: Path
    state_dir: Path
    gpus: str

    def write(self) -> None:
        values = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()}
        path = self.state_dir / INFO
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(values))
        temporary.replace(path)

    @staticmethod
    def read(state_dir: Path) -> ClusterInfo | None:
        try:
            values = json.loads((state_dir / INFO).read_text())
            return ClusterInfo(
                int(values["pid"]),
                values["server"],
                Path(values["kubeconfig"]),
                Path(values["state_dir"]),
                values["gpus"],
            )
        except (FileNotFoundError, json.JSONDecodeError, KeyError):
            return None


@contextlib.contextmanager
def _in_one_sentence(state_dir: Path) -> Iterator[None]:
    """Turns an OSError of the folder or the machine into a LocalClusterError."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise LocalClusterError(error.strerror or str(error)) from error
        problem = f"{error.strerror} ({error.filename})"
        remedy = "choose another with --state-dir (TRAINMASTER_LOCAL_DIR)"
        raise LocalClusterError(f"the cluster can't keep its files in {state_dir}: {problem}; {remedy}") from error


@contextlib.contextmanager
def _lock(state_dir: Path) -> Iterator[bool]:
    """Tries to hold the folder's lock while the block runs; yields whether it succeeded."""
    private_folder(state_dir)
    with (state_dir / LOCK).open("a") as file:
        held = _try_lock(file)
        yield held


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _runs(state_dir: Path) -> bool:
    if not (state_dir / LOCK).exists():
        return False
    with _lock(state_dir) as free:
        return not free


def status(state_dir: Path) -> ClusterInfo | None:
    """Returns the cluster that runs with this state folder, or None.

    Raises LocalClusterError if the folder is unreadable.
    """
    with _in_one_sentence(state_dir):
        return ClusterInfo.read(state_dir) if _runs(state_dir) else None


def up(
    state_dir: Path, *, nodes: int = 1, gpus: int | None = None, detach: bool = True, configure: str = ""
) -> ClusterInfo:
    """Starts a cluster of `nodes` nodes; without `detach` it runs until SIGINT or SIGTERM.

    The nodes share out this machine's GPUs, or have `gpus` each (`config.machine_nodes`).

    `configure` is the name (`package.module:name`) of a function that turns the default ClusterConfig into the one to
    use. It is a name because the cluster is a separate process. Raises LocalClusterError if one runs already or the
    start fails.
    """
    state_dir = state_dir.absolute()
    with _in_one_sentence(state_dir):
        _require_own(state_dir)
        if detach:
            return _start(state_dir, nodes, gpus, configure)
        with _lock(state_dir) as free:
            if not free:
                raise _up_already(state_dir)
            return asyncio.run(_serve(state_dir, nodes, gpus, configure))


def _require_own(state_dir: Path) -> None:
    """Raises LocalClusterError for a folder with others' files, because a cluster clears `logs`, `pods` and more."""
    if state_dir.is_dir() and not (state_dir / LOCK).exists() and any(state_dir.iterdir()):
        raise LocalClusterError(
            f"{state_dir} has files that no cluster made; name an empty folder with --state-dir (TRAINMASTER_LOCAL_DIR)"
        )


def _up_already(state_dir: Path) -> LocalClusterError:
    info = ClusterInfo.read(state_dir)
    where = f" at {info.server} (process {info.pid})" if info else ""
    return LocalClusterError(f"the cluster in {state_dir} is up already{where}: use it, or take it down first")


def _start(state_dir: Path, nodes: int, gpus: int | None, configure: str) -> ClusterInfo:
    if _runs(state_dir):
        raise _up_already(state_dir)
    private_folder(state_dir)
    (state_dir / LOCK).touch()
    (state_dir / INFO).unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "trainmaster_local.cluster",
        "--state-dir", str(state_dir), "--nodes", str(nodes), "--configure", configure,
        *(() if gpus is None else ("--gpus", str(gpus))),
    ]  # fmt: skip
    process: subprocess.Popen[bytes] | None = None
    try:
        with (state_dir / LOG).open("w") as log, interrupted_later():
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=state_dir
            )
        return _answer(process, state_dir)
    except BaseException:
        # Ctrl-C ends this process too, because no other process knows it yet.
        if process is not None:
            process.kill()
            process.wait()
        raise


@contextlib.contextmanager
def interrupted_later() -> Iterator[None]:
    """Delays an interrupt while a process starts; otherwise the process would be unknown and never end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[FrameType | None] = []
    before = signal.signal(signal.SIGINT, lambda _, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came and callable(before):
        before(signal.SIGINT, came[0])


def _answer(process: subprocess.Popen[bytes], state_dir: Path) -> ClusterInfo:
    """Returns the description that the cluster's process sends once it is up. Raises LocalClusterError."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        info = ClusterInfo.read(state_dir)
        if info and info.pid == process.pid:
            return info
        if process.poll() is not None:
            last = "".join((state_dir / LOG).read_text().splitlines()[-1:])
            if last.startswith(_ERROR):
                raise LocalClusterError(last.removeprefix(_ERROR))
            if not last and not os.statvfs(state_dir).f_bavail:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(state_dir))
            ended = f"the cluster ended as it started (exit code {process.returncode})"
            raise LocalClusterError(f"{ended}: {last}; see {state_dir / LOG}")
        time.sleep(0.02)
    raise LocalClusterError(f"the cluster didn't come up within {START_SECONDS:.0f} s: see {state_dir / LOG}")


def down(state_dir: Path) -> bool:
    """Stops the cluster and everything in it. Returns False if none ran. Raises LocalClusterError if it doesn't end."""
    state_dir = state_dir.absolute()
    info = status(state_dir)
    if info is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(info.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while _runs(state_dir) or _lives(info.pid):
        if time.monotonic() > deadline:
            # Its containers end with it, because their monitors notice.
            with contextlib.suppress(ProcessLookupError):
                os.kill(info.pid, signal.SIGKILL)
            deadline = time.monotonic() + STOP_SECONDS
        time.sleep(0.02)
    return True


def _lives(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        # If `up` was called in this process, the cluster is its child and would stay as a zombie.
        os.waitpid(pid, os.WNOHANG)
    return Path("/proc", str(pid)).exists()


async def _serve(state_dir: Path, nodes: int, gpus: int | None, configure: str) -> ClusterInfo:
    """Runs a cluster until a signal stops it."""
    from trainmaster_local.embedded import LocalCluster

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    found = devices.found(os.environ)
    try:
        config = ClusterConfig(state_dir=state_dir, nodes=machine_nodes(found, gpus=gpus, nodes=nodes))
    except ValueError as error:
        raise LocalClusterError(str(error)) from error
    if configure:
        config = pkgutil.resolve_name(configure)(config)
    async with LocalCluster(config) as cluster:
        info = ClusterInfo(os.getpid(), cluster.server, cluster.kubeconfig, state_dir, _gpus(config.nodes, found))
        info.write()
        print(f"The cluster is up at {info.server}; export KUBECONFIG={info.kubeconfig}", flush=True)
        await stop.wait()
    (state_dir / INFO).unlink(missing_ok=True)
    return info


def _gpus(nodes: Sequence[NodeConfig], found: Mapping[str, Sequence[str]]) -> str:
    """Returns a sentence about the nodes' devices."""
    given = [(node.name, name, names) for node in nodes for name, names in node.devices.items() if names]
    pods = Counter((name, device) for _, name, names in given for device in names)
    claims = []
    for node, name, names in given:
        which = ", ".join(dict.fromkeys(names)) if name in found else "faked: this machine has none"
        shared = ", shared by pods" if any(pods[name, device] > 1 for device in names) else ""
        claims.append(f"{node} has {len(names)} {name} ({which}{shared})")
    return f"GPUs: {'; '.join(claims) or 'none'}."


def main() -> int:
    """Runs `python -m trainmaster_local.cluster`, which `up` starts."""
    parser = argparse.ArgumentParser(description="Run a local cluster in the foreground.")
    parser.add_argument("--state-dir", type=Path, required=True, help="where the cluster keeps its files")
    parser.add_argument("--nodes", type=int, default=1, help="number of nodes")
    parser.add_argument("--gpus", type=int, help="GPUs of each node; default: the machine's")
    parser.add_argument("--configure", default="", metavar="MODULE:FUNCTION", help="what changes the configuration")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    try:
        up(options.state_dir, nodes=options.nodes, gpus=options.gpus, detach=False, configure=options.configure)
    except LocalClusterError as error:
        print(f"{_ERROR}{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

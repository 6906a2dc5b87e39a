"""Contains the drivers, which run the same work (`bench.programs.parts`) on local processes as ranks, and kill them.

| driver | what it is | its settings |
|---|---|---|
| torchft | torchft nightly: a lighthouse, and a manager in each rank | heartbeat, quorum and join times below |
| nvrx | nvidia-resiliency-ext's in-process restart | intervals below; its store in a process of its own |
| torchrun | `torchrun --max-restarts`, from the last checkpoint | a store for each round of ranks |
| plain | DDP that nothing protects | |

Except for torchrun's, ranks are forked from a process that has imported torch, as Trainmaster's are. Neither torchft
nor NVRx can do that, and without it a lost rank of torchft is back 4 to 70 s later.

torchrun keeps one store for all rounds of ranks, in which torch 2.13 gives the process groups of all rounds the same
keys. So a rank of the second round may read a dead rank's address, and end with "connectFullMesh failed".
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 gives each round a separate store.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.clusters.stepping_jobs import SCRIPT, environment, steps_file
from bench.clusters.steps import Steps
from bench.peers.environments import python_of
from bench.programs.installed import ROOT

END_SECONDS = 20.0
CHECKPOINT_STEPS = 100
# After this time without a heartbeat, torchft's lighthouse considers a replica dead. A quorum waits as long for
# replicas with a heartbeat. The defaults are 5 and 60 s, with a heartbeat every 100 ms.
TORCHFT_DEAD_MS, TORCHFT_HEARTBEAT_MS = 250, 50
NVRX_INTERVAL_SECONDS = 0.05


@dataclass(frozen=True)
class Ranks:
    """Ranks contains a driver's processes and the steps that they record."""

    steps: Steps
    count: int
    # `survives`: the others continue without a lost rank (otherwise all restart). `returns`: a lost rank comes back.
    survives: bool = True
    returns: bool = True
    # Starts a lost rank again, as a supervisor would; None if the driver does that itself.
    start: Callable[[int], None] | None = None

    def printed(self) -> str:
        """Returns the end of each process's output."""
        logs = sorted(self.steps.path.parent.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text()[-500:]}" for log in logs)

    def kill(self, group: int) -> int:
        """Kills a random rank, and returns its number."""
        rank = random.randrange(self.count)
        os.kill(self.steps.pids[group, rank], signal.SIGKILL)
        if self.start is not None:
            self.start(rank)
        return rank


#: Runs a number of ranks in a folder, with a PYTHONPATH that contains the training loop, and with more variables.
Driver = Callable[[Path, int, str, Mapping[str, str]], AbstractContextManager[Ranks]]


@contextmanager
def _processes(
    folder: Path, program: str, python: Path, count: int, variables: Mapping[str, str], *imported: str
) -> Iterator[Callable[[int], None]]:
    """Runs ranks of a program, forked from a process that has imported it and the modules `imported`.

    Yields a function that starts a rank again.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        # c10d's warnings look up the peer's name, which takes seconds if no DNS server answers.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "STEPS_FILE": str(folder / "steps"),
        "WORLD_SIZE": str(count),
        **variables,
    }
    command = [str(python), "-m", "bench.programs.forked", program, "torch._dynamo", *imported]
    with (folder / "warm.log").open("wb") as log:
        warm = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, start_new_session=True
        )
    assert warm.stdin is not None
    to_warm = warm.stdin

    def start(rank: int) -> None:
        to_warm.write(f"{rank} {folder / f'rank{rank}.log'}\n")
        to_warm.flush()

    try:
        for rank in range(count):
            start(rank)
        yield start
    finally:
        # When its input ends, the process kills its ranks.
        with suppress(BrokenPipeError):
            to_warm.close()
        warm.wait()


@contextmanager
def _server(command: list[str], port: int, log: Path) -> Iterator[None]:
    """Runs a server during the block. Waits first until it listens."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} doesn't listen: {log.read_text()[-500:]}")
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def torchft(folder: Path, count: int, _: str, more: Mapping[str, str]) -> Iterator[Ranks]:
    """Runs ranks of torchft, each as a replica group. A lost rank is started again at once."""
    python, port = python_of("torchft"), _free_port()
    times = {"heartbeat_timeout": TORCHFT_DEAD_MS, "quorum_tick": 10, "join_timeout": TORCHFT_DEAD_MS}
    options = [word for name, value in times.items() for word in (f"--{name}_ms", str(value))]
    lighthouse = [str(python.with_name("torchft_lighthouse")), "--bind", f"[::]:{port}", "--min_replicas", "1"]
    variables = {
        "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}",
        "HEARTBEAT_MS": str(TORCHFT_HEARTBEAT_MS),
        "GLOO_SECONDS": "5",
        **more,
    }
    with (
        _server([*lighthouse, *options], port, folder / "lighthouse.log"),
        _processes(folder, "bench.programs.torchft_ranks", python, count, variables, "torchft") as start,
    ):
        yield Ranks(Steps(folder / "steps"), count, start=start)


STORE = """
import sys, time, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
while True: time.sleep(60)
"""


@contextmanager
def nvrx(folder: Path, count: int, _: str, more: Mapping[str, str]) -> Iterator[Ranks]:
    """Runs ranks of NVRx's in-process restart. A lost rank doesn't come back."""
    python, port = python_of("nvrx"), _free_port()
    variables = {"STORE_PORT": str(port), "INTERVAL_SECONDS": str(NVRX_INTERVAL_SECONDS), **more}
    with (
        _server([str(python), "-c", STORE, str(port)], port, folder / "store.log"),
        _processes(folder, "bench.programs.nvrx_ranks", python, count, variables),
    ):
        yield Ranks(Steps(folder / "steps"), count, returns=False)


@contextmanager
def torchrun(folder: Path, count: int, python_path: str, more: Mapping[str, str]) -> Iterator[Ranks]:
    """Runs the plain script's ranks under torchrun, which restarts all when one ends. The state is on the disk."""
    variables = environment(folder, "ranks", python_path, in_memory=False, checkpoint_steps=CHECKPOINT_STEPS)
    variables |= {"TRAINMASTER_CHECKPOINT_DIR": str(folder / "checkpoints")}
    variables |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    with (folder / "torchrun.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--max-restarts", "1000", str(SCRIPT)],
            env={**os.environ, **variables, **more},
            stdout=log,
            stderr=log,
        )
    try:
        yield Ranks(Steps(steps_file(folder, "ranks")), count, survives=False)
    finally:
        # torchrun starts each rank in its own session. Ranks that it would leave behind are found before it ends.
        ranks_left = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for rank in ranks_left:
            with suppress(psutil.NoSuchProcess):
                rank.kill()


@contextmanager
def plain(folder: Path, count: int, _: str, more: Mapping[str, str]) -> Iterator[Ranks]:
    """Runs ranks that nothing protects."""
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), **more}
    with _processes(folder, "bench.programs.plain_ranks", Path(sys.executable), count, variables):
        yield Ranks(Steps(folder / "steps"), count)


DRIVERS: dict[str, Driver] = {"torchft": torchft, "nvrx": nvrx, "torchrun": torchrun}

"""Measures how long a restart takes with real agents and no cluster: `python -m bench.agent_restart`.

A restart lasts from a rank's kill until all ranks have joined again. Four agents run on one machine. A rank is a small
Python program (the one of the peers' figures) that joins rank 0 over TCP, and exits when a peer's connection breaks.
The benchmark plays the operator: it watches the leader's stream, and after a failure it assigns the next attempt, by a
push to the leader or only by the annotations' files. Other benchmarks measure what a real cluster adds (the status,
which is written first, and the kubelet's 0.1 to 0.25 s for the file).
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.processes.agent.agents import AGENT, Job, Stream, until

WORKERS = 4
FRESH = 5
IN_A_ROW = 10

RANK = """
import os, socket, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(where)
    listener.listen(size)
    peers = [listener.accept()[0] for _ in range(size - 1)]
    for peer in peers:
        peer.sendall(b".")
else:
    while True:
        try:
            peers = [socket.create_connection(where, timeout=5)]
            break
        except OSError:
            time.sleep(0.005)
    peers[0].settimeout(None)
    assert peers[0].recv(1) == b"."
with open(f"{sys.argv[1]}/joined", "a") as file:
    file.write(f"{os.environ['TRAINMASTER_ATTEMPT']} {rank} {os.getpid()} {time.monotonic()}\\n")
import select
select.select(peers, [], [])
print("ConnectionResetError: a peer has gone", file=sys.stderr)
sys.exit(1)
"""


class Group:
    """Group is four agents whose ranks have joined."""

    def __init__(self, folder: Path, push: bool) -> None:
        self.push = push
        self.job = Job(folder, f"127.{random.randrange(1, 127)}.{random.randrange(250)}")
        program = folder / "rank.py"
        program.write_text(RANK)
        for worker in range(WORKERS):
            self.job.agent(worker).start(sys.executable, str(program), str(folder), agent=AGENT)
        self.attempt = 1
        self.job.annotate(self.job.assignment(1, range(WORKERS)))
        self.all_joined()
        self.stream = Stream(self.job.agents[0])

    def all_joined(self) -> dict[int, tuple[int, float]]:
        """Returns each rank's pid and time of joining the current attempt, once all ranks have joined."""

        def find() -> dict[int, tuple[int, float]] | None:
            path = self.job.folder / "joined"
            lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
            ranks = {int(line[1]): (int(line[2]), float(line[3])) for line in lines if int(line[0]) == self.attempt}
            return ranks if len(ranks) == WORKERS else None

        return until(find, 60, f"all joined in attempt {self.attempt}")

    def recover(self) -> float:
        """Kills a random rank; returns the seconds until all ranks have joined again."""
        pid = random.choice(list(self.all_joined().values()))[0]
        killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        line = self.stream.until_report("Failed", self.attempt)
        self.attempt += 1
        assignment = self.job.assignment(self.attempt, range(WORKERS))
        if self.push:
            self.job.agents[0].request("POST", "/v1/assignment", assignment)
        else:
            self.job.annotate(assignment)
        self.job.agents[0].request("POST", "/v1/ack", {"seq": line["seq"]})
        return max(at for _, at in self.all_joined().values()) - killed_at

    def end(self) -> None:
        """Stops the agents."""
        self.stream.close()
        self.job.end()


def program_start() -> float:
    """Returns the seconds that a rank's interpreter takes to start, with `WORKERS` starting at once as in a restart."""
    begun = time.monotonic()
    started = [subprocess.Popen([sys.executable, "-c", "import socket"]) for _ in range(WORKERS)]
    for process in started:
        process.wait()
    return time.monotonic() - begun


def main() -> None:
    """Measures, and prints the table."""
    table = Table(title=f"A rank of {WORKERS} killed -> all ranks joined again (s)")
    for column in ("way", "group", "n", "median", "min", "max"):
        table.add_column(column, justify="left" if column in ("way", "group") else "right")
    for way, push in (("pushed to the leader", True), ("annotations' files alone", False)):
        fresh: list[float] = []
        for _ in range(FRESH):
            with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as folder:
                group = Group(Path(folder), push)
                fresh.append(group.recover())
                if len(fresh) == FRESH:
                    again = [group.recover() for _ in range(IN_A_ROW)]
                group.end()
        for name, times in (("fresh", fresh), ("again and again in the same group", again)):
            figures = [f"{value:.3f}" for value in (statistics.median(times), min(times), max(times))]
            table.add_row(way, name, str(len(times)), *figures)
    starts = [program_start() for _ in range(5)]
    table.add_row(
        "of which: four interpreters start", "", "5", *[f"{f(starts):.3f}" for f in (statistics.median, min, max)]
    )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

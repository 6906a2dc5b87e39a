"""Measures the time from launch to the end of the first DDP step, cold and warm: `python -m bench.warm_ranks`.

There is one real agent and no cluster. Its ranks use DDP over gloo, with one thread each. Each attempt is stopped, and
the next attempt is pushed to the agent. The time lasts from the push until the last rank has done its first step. A
warm start is measured before and after the agent has learned imports: at first only torch is imported in advance, and
later also the modules that DDP imports in its first step.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.processes.agent.agents import Agent, Job, is_gone, until

STARTS = 9
COLD_STARTS = 5
RANKS = (2, 4)
MIB = 1 << 20

RANK = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank = os.environ["RANK"]
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(8, 64)).sum().backward()
optimizer.step()
with open(f"{sys.argv[1]}/stepped", "a") as file:
    file.write(f"{os.environ['TRAINMASTER_ATTEMPT']} {rank} {os.getpid()} {time.monotonic()}\\n")
with open(f"{os.environ['TRAINMASTER_PROGRESS_FILE']}.{rank}", "w") as file:
    file.write('{"step": 1}')
time.sleep(600)
"""


class Starts:
    """Starts is one worker, which starts one attempt after the other."""

    def __init__(self, folder: Path, ranks: int, warm: bool) -> None:
        self._ranks = ranks
        self._job = Job(folder, f"127.{random.randrange(1, 127)}.{random.randrange(250)}")
        program = folder / "rank.py"
        program.write_text(RANK)
        settings = {"TRAINMASTER_LAUNCHER": "torchrun", "TRAINMASTER_WARM_START": str(warm).lower()}
        self.agent: Agent = self._job.agent(0, NPROC_PER_NODE=str(ranks), OMP_NUM_THREADS="1", **settings)
        self.agent.start(sys.executable, str(program), str(folder))
        self.agent.until_healthy()
        self.agent.annotate(self._job.assignment(0, state="Hold"))
        self._attempt = 0

    def start(self) -> float:
        """Starts an attempt, and stops it when all its ranks have done a step; returns the seconds until then."""
        self._attempt += 1
        assignment = self._job.assignment(self._attempt)
        begun = time.monotonic()
        self.agent.request("POST", "/v1/assignment", assignment)
        ranks = until(self._stepped, 120, f"attempt {self._attempt}: {self.agent.output()[-2000:]}")
        time.sleep(1.0)
        self.agent.request("POST", "/v1/assignment", {**self._job.assignment(self._attempt, state="Hold")})
        until(lambda: all(is_gone(pid) for pid, _ in ranks), 30, "the ranks are gone")
        return max(at for _, at in ranks) - begun

    def until_learned(self) -> None:
        """Waits until the warm process has imported the learned modules."""
        until((self.agent.state_dir / "warm" / "modules").exists, 60, "something is learned")

    def warm_memory(self) -> float:
        """Returns the warm process's own memory (MiB)."""
        name = "trainmaster_warm_process_private_bytes{"
        lines = (line for line in self._metrics().splitlines() if line.startswith(name))
        return next((int(line.rpartition(" ")[2]) / MIB for line in lines), 0.0)

    def _metrics(self) -> str:
        return self.agent.request("GET", "/metrics")[1]

    def _stepped(self) -> list[tuple[int, float]] | None:
        path = self._job.folder / "stepped"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        found = [(int(line[2]), float(line[3])) for line in lines if int(line[0]) == self._attempt]
        return found if len(found) == self._ranks else None

    def end(self) -> None:
        """Stops the agent."""
        self._job.end()


def main() -> None:
    """Measures, and prints the results."""
    table = Table(title="Launch to the end of the first DDP step (s)")
    for column in ("ranks", "start", "n", "median", "min", "max", "warm process's own memory"):
        table.add_column(column, justify="left" if column == "start" else "right")
    for ranks in RANKS:
        rows: list[tuple[str, list[float], float]] = []
        for warm in (False, True):
            with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as folder:
                starts = Starts(Path(folder), ranks, warm)
                if warm:
                    rows.append(("warm, first attempt", [starts.start()], starts.warm_memory()))
                    starts.until_learned()
                    rows.append(("warm, learned", [starts.start() for _ in range(STARTS)], starts.warm_memory()))
                else:
                    rows.append(("cold (torchrun)", [starts.start() for _ in range(COLD_STARTS)], 0.0))
                starts.end()
        for name, times, memory in rows:
            figures = [f"{value:.3f}" for value in (statistics.median(times), min(times), max(times))]
            table.add_row(str(ranks), name, str(len(times)), *figures, f"{memory:.0f} MiB" if memory else "")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

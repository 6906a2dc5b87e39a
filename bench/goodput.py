"""Compares the reported goodput of jobs with a fault every few seconds with a prediction: `python -m bench.goodput`.

A random rank is killed with SIGKILL again and again. Of each interval between two faults the restart and, on average,
half of a checkpoint interval are lost, so with K faults in W seconds, S of them until the first step,

    goodput = 1 - (S + K x (restart + checkpoint interval / 2)) / W

with the median restart, from the kill until all ranks have joined again, as this benchmark measures it itself. A few
faults don't hit the middle of a checkpoint interval on average, so the operator's account is compared with each job's
own lost steps, own restarts and own time a step ("by lost steps"). The ranks' processes are killed from here and keep
their checkpoint in a folder of this machine.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from bench.clusters import World, job, operator, table, world
from trainmaster.api.v1alpha1 import JobStatus
from trainmaster.controller.apiserver.cluster import JOBS
from trainmaster.reconciling.status.time_spent import CATEGORIES
from trainmaster.reconciling.times import to_seconds

WORKERS = 2
STEP_SECONDS, CHECKPOINT_STEPS = 0.05, 40
INTERVALS, FAULTS, JOBS_EACH = (5.0, 10.0, 20.0), 3, 5

# Ranks in lockstep with rank 0, which writes the checkpoint; a broken connection ends a rank, the file `stop` all.
TRAIN = """
import json, os, pathlib, socket, sys, time
folder, pause, every = pathlib.Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
rank, world, attempt = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["TRAINMASTER_ATTEMPT"]
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
checkpoint, progress = folder / "checkpoint", pathlib.Path(os.environ["TRAINMASTER_PROGRESS_FILE"])
if rank == 0:
    server = socket.create_server(address)
    peers = [server.accept()[0] for _ in range(world - 1)]
else:
    while True:
        try:
            peers = [socket.create_connection(address, 1)]; break
        except OSError:
            time.sleep(0.005)
    peers[0].settimeout(None)
print("joined", attempt, rank, os.getpid(), time.time(), flush=True)
def write(path, text):
    beside = path.with_name(f".{path.name}.{rank}"); beside.write_text(text); beside.replace(path)
step = start = int(checkpoint.read_text()) if checkpoint.exists() else 0
while True:
    began = time.monotonic()
    time.sleep(pause)
    if rank == 0:
        word = b"e" if (folder / "stop").exists() else b"s"
        [peer.sendall(word) for peer in peers]
        if not all(peer.recv(1) for peer in peers): sys.exit(1)
    else:
        word = peers[0].recv(1)
        if not word: sys.exit(1)
        peers[0].sendall(word)
    step += 1
    if rank == 0: write(folder / "reached", str(step))
    if rank == 0 and step % every == 0: write(checkpoint, str(step))
    write(progress, json.dumps({"step": step, "startStep": start, "stepSeconds": time.monotonic() - began}))
    if word == b"e": break
"""


@dataclass(frozen=True)
class Run:
    """Run is one job's end: what the operator reports, and what is needed to predict it."""

    status: JobStatus
    until_first_step: float
    restarts: tuple[float, ...]
    lost_steps: int
    step_seconds: float

    @property
    def wall(self) -> float:
        return sum(self.seconds(name) for name in CATEGORIES)

    def seconds(self, category: str) -> float:
        return float(getattr(self.status.time_spent, category) or 0.0)

    def predicted(self, restart: float) -> float:
        return self._without(len(self.restarts) * (restart + CHECKPOINT_STEPS * STEP_SECONDS / 2))

    @property
    def reported(self) -> float:
        return (self.status.progress.goodput if self.status.progress is not None else None) or 0.0

    @property
    def by_lost_steps(self) -> float:
        # A kill cuts a step off in its middle, on average.
        lost = self.lost_steps + len(self.restarts) / 2
        return self._without(sum(self.restarts) + lost * self.step_seconds)

    def _without(self, lost: float) -> float:
        return 1 - (self.until_first_step + lost) / self.wall


async def train_with_faults(made: World, name: str, interval: float) -> Run:
    """Runs a job that is killed `FAULTS` times, and goes on for one interval more."""
    folder = Path(made.folder) / name
    folder.mkdir()
    body = job(name, WORKERS, failurePolicy={"maxRestarts": 100})
    body["spec"]["command"] = ["python3", "-c", TRAIN, str(folder), str(STEP_SECONDS), str(CHECKPOINT_STEPS)]
    await made.apply(body)
    ranks = await made.joined(name, WORKERS, 1)
    first = max(at for _, at in ranks.values())
    restarts, lost = [], 0
    joined = due = first
    stepping, steps, start = 0.0, 0, 0
    for attempt in range(1, FAULTS + 1):
        # Not in step with the checkpoints.
        due += interval * random.uniform(0.8, 1.2)
        await asyncio.sleep(max(due - time.time(), 0))
        killed = time.time()
        os.kill(ranks[random.randrange(WORKERS)][0], signal.SIGKILL)
        reached, saved = _number(folder / "reached"), _number(folder / "checkpoint")
        stepping, steps = stepping + killed - joined, steps + reached - start
        lost, start = lost + reached - saved, saved
        ranks = await made.joined(name, WORKERS, attempt + 1)
        joined = max(at for _, at in ranks.values())
        restarts.append(joined - killed)
    await asyncio.sleep(max(due + interval - time.time(), 0))
    (folder / "stop").touch()
    async with asyncio.timeout(60):
        while True:
            status = JobStatus.model_validate((await made.cluster.get(JOBS, "bench", name)).get("status") or {})
            if status.phase == "Succeeded":
                break
            await asyncio.sleep(0.2)
    return Run(status, first - (to_seconds(status.start_time) or first), tuple(restarts), lost, stepping / steps)


def _number(path: Path) -> int:
    return int(path.read_text()) if path.exists() else 0


async def main() -> None:
    rows: list[list[object]] = []
    parts: list[list[object]] = []
    async with world() as made:
        with operator(made) as running:
            running.serving()
            for interval in INTERVALS:
                names = [f"every-{interval:g}-{number}" for number in range(JOBS_EACH)]
                runs = await asyncio.gather(*(train_with_faults(made, name, interval) for name in names))
                restart = statistics.median(seconds for run in runs for seconds in run.restarts)
                reported = [run.reported for run in runs]
                predicted = statistics.median(run.predicted(restart) for run in runs)
                known = statistics.median(run.by_lost_steps for run in runs)
                apart = 100 * statistics.median(run.reported - run.by_lost_steps for run in runs)
                shares = (statistics.median(reported), min(reported), max(reported), predicted, known)
                figures = [f"{value:.1%}" for value in shares]
                rows.append([f"{interval:g} s", f"{restart:.2f}", *figures, f"{apart:+.1f}"])
                for category in CATEGORIES:
                    share = statistics.median(run.seconds(category) / run.wall for run in runs)
                    if share > 0.0005:
                        parts.append([f"{interval:g} s", category, f"{share:.1%}"])
    every = CHECKPOINT_STEPS * STEP_SECONDS
    table(
        f"Goodput with a rank killed {FAULTS} times, a checkpoint every {every:g} s ({JOBS_EACH} jobs each)",
        ["fault every", "restart, s", "goodput", "min", "max", "predicted", "by lost steps", "points apart, a job"],
        rows,
    )
    table("Where the time went, median share", ["a fault every", "category", "share"], parts)


if __name__ == "__main__":
    asyncio.run(main())

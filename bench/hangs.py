"""Hangs: how soon people are informed, whether the right rank is named, and false alarms in days of healthy training.

Three tables. The first two are simulated (`tests/unit/agent/hang/simulated.py`): the agents' own decisions with a fake
clock, in 24 hours of training with evaluations, saves, recompilations, a slow disk and a paused node, and in generated
hangs. In the third one, real agents watch two real gloo ranks, one of which hangs.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, get_args

from tests.processes.agent.agents import Job, Stream
from tests.unit.agent.hang.simulated import HANGS, Script, Simulation, a_day, see
from trainmaster_operator.agent.process import children

STEPS = (0.02, 0.5, 10.0)
REAL_STEPS = (0.02, 0.5)
MOST_SECONDS = 120
RANKS = """
import faulthandler, json, os, pathlib, queue, signal, sys, threading, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
rank, world, kind, seconds = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1], float(sys.argv[2])
path, folder = pathlib.Path(os.environ["TRAINMASTER_PROGRESS_FILE"]), pathlib.Path(__file__).parent
stacks = open(os.environ["TRAINMASTER_STACKS_FILE"] + f".{rank}", "w")
faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True, chain=False)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
def say(step):
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps({"step": step, "section": "train"}))
    temporary.rename(path)
class Batches(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): time.sleep(1e6)
def hang():
    lock = threading.Lock()
    if kind == "a deadlock in own code": lock.acquire(); lock.acquire()
    elif kind == "sleep": time.sleep(1e6)
    elif kind == "SIGSTOP": os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "a missing collective": queue.Queue().get()
    elif kind == "a loader that never answers": next(iter(DataLoader(Batches(), num_workers=1)))
    elif kind == "a blocked disk": os.open(folder / "fifo", os.O_WRONLY)
    elif kind == "mismatched collectives": dist.broadcast(torch.ones(4), 0)
for step in range(1, 10**9):
    if rank == 1 and (folder / "hang").exists():
        (folder / "hung").touch()
        hang()
    time.sleep(seconds)
    dist.all_reduce(torch.ones(4))
    say(step)
"""


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def healthy(hours: float) -> int:
    """Prints the false alarms of each kind of script and duration of steps; returns their number."""
    print(f"\nHealthy training, {hours:g} simulated hours each:\n")
    print(f"{'script':<12}{'step [s]':>9}{'notices':>9}{'restarts':>10}")
    found = 0
    for script in get_args(Script):
        for step in STEPS:
            job = Simulation(script)
            job.run(a_day(step, hours, random.Random(f"{script} {step}")))
            print(f"{script:<12}{step:>9g}{len(job.notices):>9}{len(job.hung):>10}", flush=True)
            found += len(job.notices) + len(job.hung)
    return found


def simulated(each: int) -> None:
    """Prints how generated hangs are seen, with a heartbeat in each step."""
    print(f"\nGenerated hangs of 4 ranks, {each} of each of {len(HANGS)} kinds at each duration (simulated):\n")
    columns = f"{'step [s]':>9}{'hangs':>7}{'named':>7}{'notice: median':>16}{'worst [s]':>11}{'worst/step':>12}"
    print(columns + f"{'restart: median':>17}{'worst [s]':>11}")
    for step in STEPS:
        chance = random.Random(step)
        seen = [see(kind, step, "heartbeat", chance) for kind in HANGS for _ in range(each)]
        notices, restarts = [one.seconds for one in seen], [one.restart for one in seen]
        right = sum(one.is_right for one in seen)
        print(
            f"{step:>9g}{len(seen):>7}{right:>7}{statistics.median(notices):>16.1f}{max(notices):>11.1f}"
            f"{max(notices) / step:>12.1f}{statistics.median(restarts):>17.1f}{max(restarts):>11.1f}",
            flush=True,
        )


def real(kind: str, step: float, number: int) -> tuple[float, dict[str, Any], str]:
    """Let a real rank hang; returns the seconds until the leader's line about it, the line, and the load."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), f"127.77.{number}")
        os.mkfifo(job.folder / "fifo")
        code = job.folder / "train.py"
        code.write_text(RANKS)
        for worker in range(2):
            job.agent(worker).start(sys.executable, str(code), kind, str(step), WORLD_SIZE="2")
        try:
            job.annotate(job.assignment(1, range(2)))
            stream = Stream(job.agents[0])
            needed = max(12, round(4 / step))
            stream.until(
                lambda line: (
                    line["type"] == "progress" and max(rank.get("step", 0) for rank in line["ranks"].values()) >= needed
                ),
                MOST_SECONDS,
            )
            (job.folder / "hang").touch()
            while not (job.folder / "hung").exists():
                time.sleep(0.01)
            begun = time.monotonic()
            line = stream.until(lambda line: line["type"] == "stall" and bool(line["since"]), MOST_SECONDS)
            return time.monotonic() - begun, line, load()
        finally:
            for agent in job.agents.values():
                children.send(children.leftovers(str(agent.state_dir)), signal.SIGCONT)
            job.end()


def real_hangs() -> None:
    print("\nReal agents and two real gloo ranks; rank 1 hangs:\n")
    print(f"{'kind':<30}{'step [s]':>9}{'notice [s]':>12}{'rank':>6}{'load':>7}  message")
    for number, (kind, step) in enumerate((kind, step) for step in REAL_STEPS for kind in HANGS):
        seconds, line, busy = real(kind, step, number + 1)
        print(f"{kind:<30}{step:>9g}{seconds:>12.1f}{line.get('rank')!s:>6}{busy:>7}  {line['message']}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0, help="Simulated hours of healthy training (default: 24)")
    parser.add_argument("--each", type=int, default=3, help="Simulated hangs of each kind and duration (default: 3)")
    parser.add_argument("--simulated", action="store_true", help="Leave out the real processes")
    arguments = parser.parse_args()
    print(f"load {load()}")
    false_alarms = healthy(arguments.hours)
    simulated(arguments.each)
    if not arguments.simulated:
        real_hangs()
    return 1 if false_alarms else 0


if __name__ == "__main__":
    sys.exit(main())

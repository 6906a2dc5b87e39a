"""Real agents learn how long the steps of real gloo ranks take, and a leader informs people when a rank blocks."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from trainmaster_operator.agent.process import children

from .agents import Agent, Job, Stream

TRAIN = """
import faulthandler, json, os, pathlib, signal, time
import torch.distributed as dist
import torch
rank = int(os.environ["RANK"])
path = pathlib.Path(os.environ["TRAINMASTER_PROGRESS_FILE"])
folder = pathlib.Path(__file__).parent
stacks = open(os.environ["TRAINMASTER_STACKS_FILE"] + f".{rank}", "w")
faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True, chain=False)
world = int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
def say(**progress):
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps(progress))
    temporary.rename(path)
def load(step):
    if rank == 1 and (folder / "block").exists():
        os.open(folder / "fifo", os.O_RDONLY)  # nobody writes
for step in range(1, 100000):
    load(step)
    time.sleep(0.02)
    dist.all_reduce(torch.ones(4))
    say(step=step, section="train")
"""


def start(job: Job, size: int = 2, body: str = TRAIN, **environ: str) -> list[Agent]:
    code = job.folder / "train.py"
    code.write_text(body)
    agents = [
        job.agent(worker).start(sys.executable, str(code), WORLD_SIZE=str(size), **environ) for worker in range(size)
    ]
    job.annotate(job.assignment(1, range(size)))
    return agents


def until_steps(stream: Stream, steps: int) -> None:
    def done(line: dict[str, Any]) -> bool:
        return line["type"] == "progress" and any(rank.get("step", 0) >= steps for rank in line["ranks"].values())

    # On a busy machine, importing torch takes half a minute.
    stream.until(done, 120)


def until_stall(stream: Stream, *, over: bool = False) -> dict[str, Any]:
    return stream.until(lambda line: line["type"] == "stall" and bool(line["since"]) is not over)


def test_people_are_informed_in_seconds_where_a_rank_blocks(job: Job) -> None:
    os.mkfifo(job.folder / "fifo")
    agents = start(job)
    stream = Stream(agents[0])
    until_steps(stream, 150)
    assert not [line for line in stream.seen if line["type"] == "stall"]
    (job.folder / "block").touch()
    line = until_stall(stream)
    assert line["rank"] == 1
    assert line["message"].startswith('rank 1 is at train.py:18 in load: `os.open(folder / "fifo", os.O_RDONLY)')
    assert line["message"].endswith("; rank 0 waits in all_reduce (train.py:22)")
    assert (line["section"], line["restartSeconds"]) == ("train", 60.0)
    assert line["usualSeconds"] < 1.0
    assert [agent.report()["state"] for agent in agents] == ["Running"] * 2
    stream.close()


def test_a_rank_that_continues_ends_the_stall(job: Job) -> None:
    agents = start(job)
    stream = Stream(agents[0])
    until_steps(stream, 150)
    assert agents[1].process is not None
    ranks = children.descendants(agents[1].process.pid)
    children.send(ranks, signal.SIGSTOP)
    line = until_stall(stream)
    assert line["rank"] == 1 and line["message"].startswith("rank 1 is stopped by a signal (state T)")
    again = Stream(agents[0])
    assert until_stall(again) == line, "an operator that connects later is informed too"
    again.close()
    children.send(ranks, signal.SIGCONT)
    until_stall(stream, over=True)
    stream.close()

"""Trains with NVRx's in-process restart, which calls the training function again in the remaining processes.

It runs in a Python with nvidia-resiliency-ext (`bench.peers.environments`). Model and optimizer survive a restart of
the function. Then ranks compare their steps, and the furthest rank sends its state to the others. NVRx's abort is made
for NCCL. With gloo, a rank that waits for another survivor would wait until its timeout, so each rank closes its
connections when its function has ended. The benchmark serves the store, because otherwise NVRx would end with the rank
that serves it. NVRx looks for faults every `INTERVAL_SECONDS`.
"""

# NVRx reads the annotations of functions, which therefore can't be strings.
import gc
import os
import sys
import time
from datetime import timedelta
from typing import Any

import nvidia_resiliency_ext.inprocess as inprocess
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.programs.parts import PARTS, await_turn, loss_of, network, own_parts
from bench.programs.stepping_ranks import write_down

STORE = {"host_name": "127.0.0.1", "port": int(os.environ["STORE_PORT"]), "wait_for_workers": False}


class Training:
    """Training contains the objects that survive a restart of the function."""

    def __init__(self) -> None:
        self.net: nn.Module = network()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.step, self.rank = 0, int(os.environ["RANK"])
        # Adam creates its state in the first step.
        for parameter in self.net.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def synchronize(self, rank: int, size: int) -> None:
        """Sends the furthest rank's state to the others."""
        steps = torch.zeros(size, dtype=torch.int64)
        steps[rank] = self.step
        dist.all_reduce(steps)
        newest = int(steps.max())
        if self.step == newest == int(steps.min()):
            return
        for tensor in self._state():
            dist.broadcast(tensor, int(steps.argmax()))
        self.step = newest

    def _state(self) -> list[torch.Tensor]:
        moments: list[Any] = list(self.optimizer.state.values())
        weights = [parameter.data for parameter in self.net.parameters()]
        return weights + [value for state in moments for value in state.values()]


class LetGo(inprocess.finalize.Finalize):
    """LetGo drops the process group, which closes its connections."""

    def __call__(self, state: Any) -> Any:
        # In torch 2.13, if a group is deleted while its thread deletes a work, the group waits forever for the thread,
        # and holds the GIL that the thread needs.
        time.sleep(0.02)
        # The traceback's frames refer to DDP, which refers to the group.
        error = sys.exc_info()[1]
        while error is not None:
            error.__traceback__ = None
            error = error.__context__
        gc.collect()
        if dist.is_initialized():
            dist.destroy_process_group()
        return state


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


INTERVAL = float(os.environ["INTERVAL_SECONDS"])


@inprocess.Wrapper(
    store_kwargs=STORE,
    finalize=LetGo(),
    monitor_thread_interval=seconds(INTERVAL),
    monitor_process_interval=seconds(INTERVAL),
    heartbeat_interval=seconds(0.2),
    progress_watchdog_interval=seconds(INTERVAL),
    heartbeat_timeout=seconds(10),
    last_call_wait=seconds(0),
    termination_grace_time=seconds(0.1),
)
def train(training: Training, call: inprocess.CallWrapper | None = None) -> None:
    """Trains until the process is killed."""
    assert call is not None
    store = dist.TCPStore(STORE["host_name"], STORE["port"], is_master=False)
    store = dist.PrefixStore(f"ranks{call.iteration}", store)
    dist.init_process_group("gloo", store=store, timeout=seconds(10), **ranks())
    steps(training, call)


def ranks() -> dict[str, int]:
    """Returns this rank and the number of ranks. NVRx changes both when a rank is lost."""
    return {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}


def steps(training: Training, call: inprocess.CallWrapper) -> None:
    """Trains until a collective fails."""
    rank, size = ranks().values()
    training.synchronize(rank, size)
    model = DistributedDataParallel(training.net)
    while True:
        await_turn()
        parts = 0
        for part in own_parts(model, rank, size):
            loss = loss_of(model, training.step + 1, part, size)
            loss.backward()
            loss.item()
            parts += 1
        # A step that has begun isn't interrupted.
        with call.atomic():
            training.optimizer.step()
            training.optimizer.zero_grad()
            training.step += 1
        # NVRx renumbers the remaining ranks.
        write_down(training.step, 1 + call.iteration, parts, PARTS, rank=training.rank)
        if training.step == 1:
            # NVRx repeats the collection of garbage until there is none, and each time visits all imported modules.
            gc.collect()
            gc.freeze()


def main() -> None:
    """Trains until the process is killed."""
    torch.set_num_threads(1)
    train(Training())

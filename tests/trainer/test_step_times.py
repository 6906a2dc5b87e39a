"""A step's times are the device's own, and are read only where they are reported."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import config
from trainloop.config import Config
from trainloop.distributed.device import Clock, seconds_between
from trainloop.distributed.world import World, joined
from trainloop.report import read_metrics
from trainloop.trainer import Trainer

pytestmark = pytest.mark.torch


class Queue:
    """Plays a device whose queue takes 10 ms from one event to the next, 30 ms on rank 1, whatever the host does."""

    now = 0.0
    recorded = 0
    #: How many events were recorded when one was waited for.
    waits: list[int] = []  # noqa: RUF012


class Event:
    """Has the parts of torch.Event that the loop uses; its times can be read once it has been waited for, as on a
    device.
    """

    def __init__(self, device: torch.device, enable_timing: bool = False) -> None:
        assert device.type == "meta" and enable_timing
        self.reached = False

    def record(self) -> None:
        Queue.now += 30.0 if os.environ["RANK"] == "1" else 10.0
        Queue.recorded += 1
        self.at = Queue.now

    def synchronize(self) -> None:
        Queue.waits.append(Queue.recorded)
        self.reached = True

    def elapsed_time(self, end: Event) -> float:
        assert end.reached
        return end.at - self.at


def _on_a_device(settings: Config) -> tuple[list[int], list[list[float]], float]:
    """Train; returns how many steps were made when an event was waited for, the shares after each step, and the
    computing time that this rank reports.
    """
    os.environ["TRAINMASTER_PROGRESS_FILE"] = f"{settings.metrics.path}/progress-{os.environ['RANK']}"
    shares: list[list[float]] = []
    with joined(settings.distributed) as world, pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "Event", Event)
        trainer = Trainer(settings, world)
        trainer.exchange.clock = Clock(torch.device("meta"))
        trainer.after_step.append(lambda trainer: shares.append(list(trainer.balancer.weights)))
        trainer.run()
    # Five events per step: its begin, begin and end of the wait for the global count, this rank's last gradient, all
    # ranks' gradients.
    reported = json.loads(Path(os.environ["TRAINMASTER_PROGRESS_FILE"]).read_text())
    return sorted({wait // 5 for wait in Queue.waits}), shares, reported["computeSeconds"]


def test_a_steps_times_are_the_devices_and_wait_for_it_only_where_a_line_is_due(tmp_path: Path) -> None:
    report = {"path": str(tmp_path), "every_steps": 4, "plot": False}
    ranks = run_ranks(2, _on_a_device, config(metrics=report, steps=10))
    assert [waits for waits, _, _ in ranks] == [[1, 4, 8, 10]] * 2
    assert [computed for _, _, computed in ranks] == pytest.approx([0.02, 0.06]), "each rank reports its own"
    lines = [line for line in read_metrics(tmp_path / "metrics.jsonl") if line["kind"] == "step"]
    assert [line["step"] for line in lines] == [1, 4, 8, 10]
    for line in lines:
        assert line["rankComputeSeconds"] == pytest.approx([0.02, 0.06])
        # A share of the host's time, by which both ranks' means are divided.
        assert line["communication"] * line["stepSeconds"] == pytest.approx((0.01 + 0.03) / 2)


class Ticks(Clock):
    """Plays a host's clock that advances a second between two readings."""

    seconds = 0.0

    def now(self) -> float:
        self.seconds += 1
        return self.seconds


def _with_a_late_rank(settings: Config) -> None:
    """Train with a rank 1 whose data arrives 100 s late: rank 0 waits for its count."""
    summing = World.summing

    def late(world: World, values: Sequence[float]) -> Callable[[], list[float]]:
        waited = summing(world, values)

        def arriving() -> list[float]:
            clock.seconds += 100 * (world.rank == 0)
            return waited()

        return arriving

    with joined(settings.distributed) as world, pytest.MonkeyPatch.context() as patch:
        trainer = Trainer(settings, world)
        trainer.exchange.clock = clock = Ticks(world.device)
        patch.setattr(World, "summing", late)
        trainer.run()


def test_waiting_for_a_rank_that_is_late_isnt_computing(tmp_path: Path) -> None:
    run_ranks(2, _with_a_late_rank, config(metrics={"path": str(tmp_path), "every_steps": 1, "plot": False}, steps=3))
    lines = [line for line in read_metrics(tmp_path / "metrics.jsonl") if line["kind"] == "step"]
    assert [line["rankComputeSeconds"] for line in lines] == [[2.0, 2.0]] * 3


def test_shares_follow_the_devices_speed_at_the_same_step_on_all_ranks() -> None:
    """After two warm-up steps three are measured; rank 1's device is three times as slow."""
    metrics: dict[str, Any] = {"path": os.environ["TRAINLOOP_TEST_REPORTS"], "every_steps": 100, "plot": False}
    balance = {"enabled": True, "warmup": 2, "every": 3}
    for waits, shares, _ in run_ranks(2, _on_a_device, config(metrics=metrics, balance=balance, steps=7)):
        assert waits == [1, 5, 7]
        assert shares[:4] == [[0.5, 0.5]] * 4
        assert shares[4] == pytest.approx([0.75, 0.25])


def test_on_the_cpu_the_hosts_clock_is_used() -> None:
    clock = Clock(torch.device("cpu"))
    began = clock.now()
    assert isinstance(began, float)
    assert seconds_between(began, began + 2.5) == 2.5

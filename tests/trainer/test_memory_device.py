"""Survivors and snapshots keep a consistent state while the device lags behind the host, stalls for good, or is
released (`recovery/keeper`, `steps`, `slots`, `snapshots`, `generations`).

The device is a fake (`fake_device`). A step on it is a forward that changes a buffer, a collective, and an optimizer's
step. After step k all weights are k, and so is the buffer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.fake_device import FakeDevice
from trainloop.recovery import keeper as keeper_module
from trainloop.recovery import sealed, slots
from trainloop.recovery.agreement import Group, newest
from trainloop.recovery.keeper import Keeper, Kept
from trainloop.recovery.place import Place
from trainloop.recovery.steps import AHEAD, Hold
from trainloop.recovery.tensors import OptimizerState

PLACE = Place("job", 1, 0, 1, 1)


class Rule(torch.optim.Optimizer):
    """Adds 1 to all weights, on the device; if it `holds`, it can leave a step out, as torch's fused optimizers can."""

    def __init__(self, device: FakeDevice, parameters: list[torch.Tensor], *, holds: bool = True) -> None:
        super().__init__(parameters, {"lr": 1.0, "fused": holds})
        self.device, self.found_inf = device, None
        self._step_supports_amp_scaling = holds

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        left_out = self.found_inf

        def work() -> None:
            if left_out is None or not left_out:
                for group in self.param_groups:
                    for weight in group["params"]:
                        weight.data.add_(1)

        self.device.run(work)


class Run:
    """Runs a rank's loop."""

    def __init__(
        self, directory: Path, device: FakeDevice, *, holds: bool = True, size: int = 100, attempt: int = 1
    ) -> None:
        self.device, self.directory, self.said, self.step = device, directory, list[str](), 0
        #: The state's further values, by step.
        self.more: Callable[[], dict[str, Any]] = dict
        self.model = nn.Linear(size, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        self.model.register_buffer("seen", torch.zeros(3))
        self.model.register_buffer("mask", torch.ones(2, 300))
        self.optimizer = Rule(device, list(self.model.parameters()), holds=holds)
        place = replace(PLACE, attempt=attempt)
        self.keeper = Keeper(place, directory, torch.device("cpu"), self.kept(), Group(place), self.said.append)
        self.optimizer.register_step_pre_hook(lambda *_: self.keeper.changing())

    def kept(self) -> Kept:
        weights = dict(self.model.named_parameters())
        return Kept(
            host=lambda: {"step": self.step, **self.more()},
            state=lambda host: {**host, "model": weights},
            buffers=slots.Buffers(self.model),
            optimizers=[self.optimizer],
        )

    def begin(self, step: int = 0, source: int | None = None, *, snapshots: bool = False) -> Run:
        self.step = step
        self.keeper.begin(step, source)
        if not snapshots:
            self.keeper._snapshots._next = 1 << 60
        return self

    def queue_step(self, before: Callable[[], None] = lambda: None) -> None:
        """Queue a step, in which `before` precedes the optimizer's step."""
        seen = self.model.get_buffer("seen")
        self.device.run(lambda: seen.data.add_(1))
        torch.autograd.graph.increment_version(seen)  # as the host does when it queues a change
        before()
        self.optimizer.step()
        self.step += 1
        self.keeper.finished(self.step)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
    fake = FakeDevice()
    monkeypatch.setattr(keeper_module, "device_of", lambda _: fake)
    yield fake
    fake.end_collective()


@pytest.fixture
def run(tmp_path: Path, device: FakeDevice) -> Run:
    return Run(tmp_path, device).begin()


def found(directory: Path, said: list[str] | None = None, attempt: int = 2) -> Any:
    """Returns the state from which the next attempt would resume: its step, the host's value, weights and buffers."""
    next_place = Place("job", attempt, 0, 1, 1)
    for each in newest(next_place, Group(next_place), (said if said is not None else []).append, directory):
        state, buffers = each.first(), each.buffers(0)
        weights = set(state["model"]["weight"].flatten().tolist())
        return each.step, state["step"], weights, set(buffers["seen"].tolist()), buffers["mask"].shape
    return None


def consistent(step: int) -> Any:
    return step, step, {float(step)}, {float(step)}, (2, 300)


def test_a_survivor_keeps_the_step_that_the_device_has_made_and_not_the_one_that_the_host_has_queued(run: Run) -> None:
    for _ in range(5):
        run.queue_step()
    run.queue_step(run.device.collective)  # in which a rank is dead
    run.device.waits.wait()
    for _ in range(AHEAD - 1):
        run.queue_step()
    assert run.step == 5 + AHEAD and AHEAD > 1
    run.keeper.save()
    assert found(run.directory) == consistent(5)


def test_a_survivor_whose_host_waits_for_the_device_keeps_its_state(run: Run) -> None:
    """The host waits as in `loss.item()` between the optimizer's step and the step's end, and in all other places."""
    for _ in range(3):
        run.queue_step()

    def host() -> None:
        run.device.collective()
        run.optimizer.step()
        run.device.synchronize()

    waiting = threading.Thread(target=host, daemon=True)
    waiting.start()
    run.device.waits.wait()
    time.sleep(0.05)
    began = time.monotonic()
    run.keeper.save()
    assert found(run.directory) == consistent(3) and time.monotonic() - began < 5


def test_the_host_is_never_further_ahead_than_is_remembered(run: Run) -> None:
    run.queue_step(run.device.collective)

    def host() -> None:
        for _ in range(3 * AHEAD):
            run.queue_step()

    waiting = threading.Thread(target=host, daemon=True)
    waiting.start()
    time.sleep(0.3)
    assert run.step == AHEAD
    run.keeper.save()
    assert found(run.directory) == consistent(0)


def test_a_device_that_is_only_slow_is_waited_for(run: Run) -> None:
    for _ in range(AHEAD):
        run.queue_step(lambda: run.device.run(lambda: time.sleep(0.05)))
    run.keeper.save()
    assert found(run.directory) == consistent(AHEAD)


def test_a_collective_that_is_ended_while_the_state_is_copied_spoils_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work queued behind the collective then runs, but has no effect: the state remains that of the step before."""
    monkeypatch.setenv("TRAINMASTER_SAVING_FILE", str(run.directory / "saving"))  # an agent ends the rank in any case
    for _ in range(3):
        run.queue_step()
    run.queue_step(run.device.collective)
    run.queue_step()
    run.device.waits.wait()

    def aborted() -> None:
        run.device.end_collective()
        run.device.synchronize()

    run.device.before_copy = aborted
    run.keeper.save()
    assert found(run.directory)[:3] == consistent(3)[:3]
    assert set(run.model.weight.flatten().tolist()) == {3.0}, "the queued steps were made nothing"
    with pytest.raises(SystemExit) as stopped:
        run.queue_step()
    assert stopped.value.code == 143


def test_a_state_that_changes_while_it_is_copied_is_never_sealed(tmp_path: Path, device: FakeDevice) -> None:
    """The optimizer can't leave a step out. Here the collective ends well, because the rank was only late."""
    run = Run(tmp_path, device, holds=False).begin()
    for _ in range(3):
        run.queue_step()
    run.queue_step(device.collective)
    device.waits.wait()
    ended = list[bool]()

    def late() -> None:
        if not ended:
            ended.append(True)
            device.end_collective()
            device.synchronize()

    device.before_copy = late
    run.keeper.save()
    assert found(tmp_path) == consistent(4)


def test_a_snapshot_has_its_step_while_training_goes_on(tmp_path: Path, device: FakeDevice) -> None:
    """Before the device changes the copied tensors, it waits for the copy; the host doesn't wait."""
    run = Run(tmp_path, device).begin(snapshots=True)
    copying, go_on = threading.Event(), threading.Event()

    def slowly() -> None:
        copying.set()
        go_on.wait(30)

    for _ in range(3):
        run.queue_step()
    device.before_copy = slowly
    run.queue_step()  # the fourth, after which there is a snapshot
    assert copying.wait(10)
    began = time.monotonic()
    for _ in range(AHEAD):
        run.queue_step()
    assert time.monotonic() - began < 5 and found(tmp_path) is None
    time.sleep(0.1)
    assert set(run.model.weight.flatten().tolist()) == {4.0}, "the fifth step changed what is being copied"
    device.before_copy = lambda: None
    go_on.set()
    until = time.monotonic() + 10
    while found(tmp_path) is None and time.monotonic() < until:
        time.sleep(0.01)
    assert found(tmp_path) == consistent(4)


def test_generations_are_written_again_and_again(run: Run) -> None:
    """Nothing is allocated after the first step, and the newest state known to be whole is never overwritten."""
    inodes = set[int]()
    for _ in range(8):
        run.queue_step()
        run.device.synchronize()
        run.keeper.save()
        files = sorted(run.directory.glob(f"*{sealed.MEMORY}"))
        inodes |= {file.stat().st_ino for file in files}
        assert found(run.directory) == consistent(run.step)
    assert len(files) == 2 and len(inodes) == 2
    steps = sorted(seal.step for file in files if (seal := sealed.read_seal(file)))
    assert steps[-1] == 8


def test_what_a_killed_rank_had_alone_is_there_as_far_as_its_device_had_got(run: Run) -> None:
    for _ in range(3):
        run.queue_step()
    run.queue_step(run.device.collective)
    run.device.waits.wait()
    time.sleep(0.1)
    assert slots.read(run.directory, "job", 1, 3).keys() == {0}
    assert slots.read(run.directory, "job", 1, 4) == {}, "the host has got there, the device hasn't"


def test_a_step_copies_the_buffers_that_it_changes_and_waits_for_nothing(run: Run) -> None:
    """Buffers are first copied on the device, in one call for each type, and from there to the host in one. Masks stay
    where they are.
    """
    mask, seen = run.model.get_buffer("mask"), run.model.get_buffer("seen")
    for _ in range(2):
        run.queue_step()
        run.device.synchronize()
    run.device.copied.clear()
    run.queue_step(run.device.collective)
    run.queue_step()
    # The buffer, the step's number, both to the host (in multiples of 64 bytes), and the flag that a step reads.
    assert run.device.copied == 2 * [seen.nbytes, 8, 64, 8, 4] and mask.nbytes > 64


def test_a_buffer_that_begins_to_change_later_is_kept_as_it_was(run: Run) -> None:
    """The host knows of the change while the device is still a step behind."""
    mask = run.model.get_buffer("mask")
    for _ in range(3):
        run.queue_step()
    run.device.synchronize()
    run.queue_step(run.device.collective)
    mask.zero_()  # in the fifth step, which the device hasn't begun
    run.keeper.save()
    for each in newest(Place("job", 2, 0, 1, 1), Group(PLACE), run.said.append, run.directory):
        assert each.step == 3 and each.buffers(0)["mask"].eq(1).all()
        break


def test_a_planned_stop_writes_the_state_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_SAVING_FILE", str(run.directory / "saving"))
    (run.directory / "saving.planned").write_text("30.0")
    run.queue_step()
    signalled = run.keeper._wakes
    assert signalled is not None
    os.write(signalled[1], bytes([15]))  # as SIGTERM's C handler does
    time.sleep(0.2)
    run.queue_step()  # continues to the step's end
    assert found(run.directory) is None
    run.keeper.save()
    run.keeper.close()
    assert found(run.directory) == consistent(2)
    assert sum("kept in memory" in sentence for sentence in run.said) == 1


def test_after_a_fault_the_state_is_written_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_SAVING_FILE", str(run.directory / "saving"))
    run.queue_step()
    assert run.keeper._wakes is not None
    os.write(run.keeper._wakes[1], bytes([15]))
    until = time.monotonic() + 10
    while found(run.directory) is None and time.monotonic() < until:
        time.sleep(0.01)
    assert found(run.directory) == consistent(1)
    run.keeper.close()


def test_a_state_that_grows_costs_no_new_file_and_not_what_the_run_goes_on_from(
    tmp_path: Path, device: FakeDevice
) -> None:
    """A list of losses, as Hugging Face's Trainer keeps it, makes the state longer in every step."""
    run = Run(tmp_path, device).begin()
    run.more = lambda: {"losses": list(range(run.step))}
    for _ in range(3):
        run.queue_step()
    device.synchronize()
    run.keeper.save()
    again = Run(tmp_path, device, attempt=2)
    again.more = lambda: {"losses": list(range(again.step))}
    again.model.load_state_dict(run.model.state_dict())
    again.begin(3, 1)
    inodes = set[int]()
    for _ in range(20):
        again.queue_step()
        device.synchronize()
        assert found(tmp_path, attempt=3)[:2] == (3, 3), "nothing newer is there yet"
        inodes |= {file.stat().st_ino for file in tmp_path.glob(f"*{sealed.MEMORY}")}
    for _ in range(10):
        again.queue_step()
        device.synchronize()
        again.keeper.save()
        inodes |= {file.stat().st_ino for file in tmp_path.glob(f"*{sealed.MEMORY}")}
    assert found(tmp_path, attempt=3) == consistent(33) and len(inodes) == 2


def test_what_a_rank_had_alone_goes_with_its_snapshot_until_there_is_a_newer_one(
    tmp_path: Path, device: FakeDevice
) -> None:
    """Ranks are repeatedly asked for a snapshot that takes longer than a step."""
    run = Run(tmp_path, device).begin(snapshots=True)
    go_on = threading.Event()
    for _ in range(3):
        run.queue_step()
    device.synchronize()

    def slowly() -> None:
        go_on.wait(30)

    device.before_copy = slowly
    run.queue_step()
    run.keeper._snapshots._next = 0
    for _ in range(AHEAD):
        run.queue_step()
    go_on.set()
    device.before_copy = lambda: None
    for _ in range(12):
        run.queue_step()
        device.synchronize()
    assert found(tmp_path) == consistent(4)


def test_a_snapshot_that_is_queued_never_gets_into_what_a_survivor_writes(
    tmp_path: Path, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot waits behind the collective that never ends, until the rank's end ends that."""
    monkeypatch.setenv("TRAINMASTER_SAVING_FILE", str(tmp_path / "saving"))
    run = Run(tmp_path, device, holds=False).begin(snapshots=True)
    for _ in range(3):
        run.queue_step()
    device.synchronize()
    run.queue_step(device.collective)  # the fourth, followed by a snapshot
    device.waits.wait()
    run.keeper.save()
    assert found(tmp_path) == consistent(3)
    device.end_collective()
    device.synchronize()
    time.sleep(0.1)
    assert found(tmp_path) == consistent(3)
    with pytest.raises(SystemExit):
        run.queue_step()


def test_a_script_that_accumulates_over_its_steps_keeps_the_last_one(run: Run) -> None:
    """Its optimizer steps in every eighth step; the host's lead is bounded in the others too."""
    for number in range(1, 17):
        if number % 8 == 0:
            run.optimizer.step()
        run.step = number
        run.keeper.finished(number)
    run.device.synchronize()

    def host() -> None:
        run.device.collective()
        for number in range(17, 30):
            run.step = number
            run.keeper.finished(number)

    threading.Thread(target=host, daemon=True).start()
    run.device.waits.wait()
    time.sleep(0.1)
    run.keeper.save()
    step, of_host, weights, _, _ = found(run.directory)
    assert step == of_host == 16 and weights == {2.0}


def test_state_that_the_queued_step_makes_is_not_the_step_befores(device: FakeDevice) -> None:
    weight = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    state = OptimizerState(optimizer, torch.device("cuda"))
    before = state.host()
    weight.grad = torch.ones(3)
    optimizer.step()
    assert state.whole(before)["state"] == {} and state.whole(state.host())["state"].keys() == {0}
    of_step = state.host()
    optimizer.step()
    assert state.whole(of_step)["state"][0]["step"] == 1, "what the host counts is as it was"


def test_a_device_that_has_failed_is_a_sentence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.queue_step()

    def fail(_: object) -> bool:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr("tests.trainer.fake_device.FakeEvent.query", fail)
    run.keeper.save()
    assert run.said[-1] == "state of step 1 not kept in memory: CUDA error: device-side assert triggered"


def test_where_an_average_of_weights_changes_too_queued_steps_are_left_as_they_are(
    tmp_path: Path, device: FakeDevice
) -> None:
    run = Run(tmp_path, device)
    kept = replace(run.kept(), alone=False)
    assert not Keeper(PLACE, tmp_path, torch.device("cpu"), kept, Group(PLACE), print)._hold.works


def test_an_older_state_without_fused_settings_trains_on(device: FakeDevice) -> None:
    weight = nn.Parameter(torch.zeros(2))
    old, new = torch.optim.Adam([weight], lr=0.1), torch.optim.Adam([weight], lr=0.1, fused=True)
    hold = Hold(device, [new], lambda: None)
    new.load_state_dict(old.state_dict())
    hold.begin(1)
    weight.grad = torch.ones(2)
    new.step()
    assert weight.tolist() != [0.0, 0.0] and not hold.works


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_fused_optimizers_are_held(kind: type[torch.optim.Optimizer], device: FakeDevice) -> None:
    """With the flag set a step changes nothing, bit for bit, and only that step."""
    models = [nn.Linear(4, 4), nn.Linear(4, 4)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers: list[Any] = [kind(model.parameters(), lr=0.1, fused=True) for model in models]  # type: ignore[call-arg]
    hold = Hold(device, [optimizers[0]], lambda: None)
    assert hold.works

    def step(number: int, *, held: bool = False) -> None:
        for model in models:
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, float(number))
        hold.begin(number)
        device.synchronize()
        optimizers[0].step()
        if not held:
            optimizers[1].step()

    for number in range(3):
        step(number)
    hold.set()
    step(3, held=True)
    hold.read()
    device.synchronize()
    assert hold.left_out() == {3}
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)
    states = [optimizer.state_dict()["state"] for optimizer in optimizers]
    assert all(torch.equal(states[0][of][name], each) for of, own in states[1].items() for name, each in own.items())


def test_a_scalers_verdict_and_the_flag_count_both(device: FakeDevice) -> None:
    weight = nn.Parameter(torch.zeros(2))
    optimizer: Any = torch.optim.SGD([weight], lr=1.0, fused=True)
    hold = Hold(device, [optimizer], lambda: None)
    hold.begin(1)
    device.synchronize()
    for found, expected in ((1.0, 0.0), (0.0, -1.0)):
        weight.grad = torch.ones(2)
        optimizer.found_inf = torch.tensor(found)
        optimizer.step()
        del optimizer.found_inf
        assert weight.tolist() == [expected] * 2

"""In a stall the agent collects evidence, and finds from a rank's stacks and source what the rank is waiting for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.agent.progress.test_recorder import dump, entry
from trainmaster_operator.agent.hang import evidence as evidence_module
from trainmaster_operator.agent.hang.diagnosis import ANSWER_SECONDS as DIAGNOSIS_SECONDS
from trainmaster_operator.agent.hang.evidence import STACKS_SECONDS, CollectedEvidence
from trainmaster_operator.agent.process import kernel
from trainmaster_operator.agent.process.kernel import has_device
from trainmaster_operator.agent.process.launcher import recorder_environment
from trainmaster_operator.agent.process.rank_processes import RankProcess
from trainmaster_operator.agent.process.stacks import Frame, collective_of, main_frames, user_frame
from trainmaster_operator.agent.progress.recorder import ANSWER_SECONDS
from trainmaster_operator.wire.ranks import RankState

STACKS = 'Current thread 0x00007f02 (most recent call first):\n  File "{}", line 3 in main\n'
SCRIPT = "def main():\n    loss = step()\n    total += loss.item()\n"


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this process stand for every rank, with an accelerator open."""
    monkeypatch.setattr(evidence_module, "ask_for_stacks", lambda pid: True)
    monkeypatch.setattr(evidence_module, "has_device", lambda pid: True)


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Path]:
    """Starts a rank's flight recorder that listens, and whose dump goes into this file."""
    environ = recorder_environment(str(tmp_path))
    os.mkfifo(f"{environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}0.pipe")
    reading = os.open(f"{environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}0.pipe", os.O_RDONLY | os.O_NONBLOCK)
    yield Path(f"{environ['TORCH_FR_DUMP_TEMP_FILE']}0")
    os.close(reading)


def ranks(folder: Path, count: int = 1, **environ: str) -> list[RankProcess]:
    environ = {**recorder_environment(str(folder)), **environ}
    return [RankProcess(rank, os.getpid(), (str(folder / f"stacks.{rank}"),), environ) for rank in range(count)]


def after(evidence: CollectedEvidence, seconds: float) -> bool:
    """Polls once a while later."""
    return evidence.poll(100.0 + seconds)


def test_a_first_dump_is_waited_for_and_stacks_no_longer_than_before(tmp_path: Path, recorder: Path) -> None:
    evidence = CollectedEvidence(str(tmp_path), ranks(tmp_path), 100.0)
    (tmp_path / "stacks.0").write_text(STACKS.format("train.py"))
    assert not after(evidence, 0.1) and not after(evidence, STACKS_SECONDS)
    recorder.write_bytes(dump(entry(16), entry(17, "scheduled")))
    assert after(evidence, 1.9)
    state = evidence.complete({0: RankState(step=7)})[0]
    assert (state.collective, state.pending) == (17, True)
    assert "waits in collective 17" in state.text


def test_nobody_waits_for_a_recorder_that_never_answers(tmp_path: Path, recorder: Path) -> None:
    evidence = CollectedEvidence(str(tmp_path), ranks(tmp_path), 100.0)
    (tmp_path / "stacks.0").write_text(STACKS.format("train.py"))
    assert not after(evidence, ANSWER_SECONDS - 0.1) and after(evidence, ANSWER_SECONDS)
    assert ANSWER_SECONDS < DIAGNOSIS_SECONDS, "the leader waits for such a worker"


def test_without_a_recorder_the_stacks_alone_are_waited_for(tmp_path: Path) -> None:
    evidence = CollectedEvidence(str(tmp_path), ranks(tmp_path), 100.0)
    assert not after(evidence, STACKS_SECONDS - 0.1) and after(evidence, STACKS_SECONDS)
    assert evidence.complete({0: RankState()})[0].waits == ""


@pytest.mark.parametrize(
    ("world", "device", "waits"), [(2, True, "device"), (2, False, "nothing"), (1, True, "device")]
)
def test_a_rank_in_item_waits_for_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: int, device: bool, waits: str
) -> None:
    monkeypatch.setattr(evidence_module, "has_device", lambda pid: device)
    (tmp_path / "train.py").write_text(SCRIPT)
    evidence = CollectedEvidence(str(tmp_path), ranks(tmp_path, WORLD_SIZE=str(world)), 100.0)
    (tmp_path / "stacks.0").write_text(STACKS.format(tmp_path / "train.py"))
    after(evidence, 0.1)
    deadline = time.monotonic() + 10
    while (found := evidence.complete({0: RankState()})[0].waits) != waits and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found == waits


def test_a_collective_of_a_rank_alone_waits_for_the_device(tmp_path: Path, recorder: Path) -> None:
    evidence = CollectedEvidence(str(tmp_path), ranks(tmp_path, WORLD_SIZE="1"), 100.0)
    recorder.write_bytes(dump(entry(16), entry(17, "scheduled")))
    (tmp_path / "stacks.0").write_text(STACKS.format("train.py"))
    after(evidence, 0.1)
    state = evidence.complete({0: RankState()})[0]
    assert (state.waits, state.pending) == ("device", False)


@pytest.mark.parametrize("file", ["no-such-file.py", "/dev/zero"])
def test_a_source_that_cannot_be_read_says_nothing(tmp_path: Path, file: str) -> None:
    evidence = CollectedEvidence(str(tmp_path), ranks(tmp_path), 100.0)
    (tmp_path / "stacks.0").write_text(STACKS.format(file))
    after(evidence, 0.1)
    time.sleep(0.1)
    assert evidence.complete({0: RankState()})[0].waits == "nothing"


def test_a_source_that_hangs_does_not_stop_the_agent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.py")
    evidence = CollectedEvidence(str(tmp_path), ranks(tmp_path), 100.0)
    (tmp_path / "stacks.0").write_text(STACKS.format(tmp_path / "train.py"))
    assert not after(evidence, 0.1) and after(evidence, 0.2)
    os.close(os.open(tmp_path / "train.py", os.O_RDWR))


def test_the_frames_of_the_main_thread_and_the_users_own() -> None:
    other = 'Thread 0x00007f01 (most recent call first):\n  File "/x/threading.py", line 320 in wait\n\n'
    assert main_frames(other + STACKS.format("/app/train.py")) == [Frame("/app/train.py", 3, "main")]
    by_py_spy = 'Thread 7 (active): "MainThread"\n    main (train.py:12)\n    <module> (train.py:40)\n'
    assert main_frames(by_py_spy) == [Frame("train.py", 12, "main"), Frame("train.py", 40, "<module>")]
    assert main_frames("") == main_frames("Current thread 0x00007f02 (most recent call first):\n") == []
    assert user_frame([]) is None


@pytest.mark.parametrize(
    ("files", "own"),
    [
        (["/usr/lib/python3.12/threading.py", "/usr/lib/python3.12/queue.py", "/app/train.py", "/app/main.py"], 2),
        (["/opt/conda/lib/python3.11/site-packages/torch/nn/module.py", "<frozen runpy>", "train.py"], 2),
        (["/usr/lib/python3/dist-packages/numpy/core.py", "/app/torch/model.py"], 1),
        (["/usr/lib/python3.12/threading.py"], 0),
    ],
)
def test_the_users_frame_is_none_of_a_library(files: list[str], own: int) -> None:
    frames = [Frame(file, line, "f") for line, file in enumerate(files)]
    assert user_frame(frames) == frames[own]


def test_the_collective_is_the_one_that_the_user_called() -> None:
    c10d = "/x/site-packages/torch/distributed/distributed_c10d.py"
    inner = [Frame(c10d, 1, "broadcast"), Frame("/x/torch/distributed/c10d_logger.py", 2, "wrapper")]
    assert collective_of([*inner, Frame("train.py", 3, "step")]) == "broadcast"
    assert collective_of([*inner, Frame(c10d, 3, "broadcast_object_list"), Frame("train.py", 4, "step")]) == (
        "broadcast_object_list"
    )
    assert collective_of([Frame("/x/torch/autograd/graph.py", 5, "_engine_run_backward")]) == "backward's all_reduce"
    assert collective_of([Frame("train.py", 3, "step")]) == ""


def test_an_open_accelerator_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_device(os.getpid()) and not has_device(2**22 + 1)
    monkeypatch.setattr(kernel, "_DEVICES", ("/dev/null",))
    with Path(os.devnull).open():
        assert has_device(os.getpid())

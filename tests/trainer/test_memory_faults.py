"""If the state in memory is unusable in any way, a run resumes from the next best, and reports why (`recovery`)."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from tests.trainer.faults import attempt, files, said, sealed
from tests.trainer.test_memory_script import equal, script, through
from trainloop.recovery import agreement, room
from trainloop.recovery import sealed as sealed_module
from trainloop.recovery.encoding import Encoded, EncodingError, decode
from trainloop.recovery.place import announced
from trainloop.recovery.sealed import HEADER_BYTES, Seal, write

KILLED = {0: ("kill", 3)}


@pytest.fixture(scope="module")
def killed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the memory and the disk of an attempt whose rank 0 was killed after three steps."""
    folder = tmp_path_factory.mktemp("killed")
    variables = {"TRAINMASTER_CHECKPOINT_DIR": str(folder / "disk")}
    attempt(1, 2, folder / "memory", {"every": 2}, KILLED, script, **variables)
    return folder


@pytest.fixture
def killed(tmp_path: Path, killed_once: Path) -> Path:
    """Returns a copy of that memory; `disk` is beside it."""
    shutil.copytree(killed_once, tmp_path / "killed")
    return tmp_path / "killed" / "memory"


def the_sealed(memory: Path) -> Path:
    [file] = files(memory)
    return file


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[HEADER_BYTES + 100 : HEADER_BYTES + 120] = bytes(20)
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:10_000])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def belie(file: Path) -> None:
    """Put a state there that is whole but contains nothing that it claims."""
    file.unlink()
    write(file.parent, Encoded({"state": {"model": {}}}), "job", 1, 7)


def rename(file: Path) -> None:
    """Rename a state: on a disk, files are named after their content."""
    file.rename(file.with_name("1-9-0-of-1.sealed"))


def tear(file: Path) -> None:
    """Damage the head, as if a rank had been killed while it wrote it."""
    content = bytearray(file.read_bytes())
    content[60:HEADER_BYTES] = bytes(HEADER_BYTES - 60)
    file.write_bytes(content)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (damage, "it is no state of a run"),
        (tear, "has no seal"),
        (cut, "bytes, its seal lists"),
        (empty, "has no seal"),
        (belie, "isn't of this model"),
        (rename, "has no seal that goes with its name"),
    ],
)
def test_a_state_that_is_none_is_passed_over_for_the_one_on_the_disk(
    killed: Path, harm: Callable[[Path], None], sentence: str
) -> None:
    disk = {"TRAINMASTER_CHECKPOINT_DIR": str(killed.parent / "disk")}
    harm(the_sealed(killed))
    resumed = attempt(2, 2, killed, {"every": 2}, None, script, **disk)
    assert resumed[0]["seen"] == [3, 4, 5, 6, 7, 8] and sentence in said(killed)
    assert equal(resumed, through(2))


@pytest.mark.torch
def test_a_damaged_state_is_had_from_another_holder(tmp_path: Path) -> None:
    attempt(1, 4, tmp_path, {}, KILLED, script)
    damage(files(tmp_path)[0])
    assert attempt(2, 4, tmp_path, {}, None, script)[0]["seen"][-5:] == [4, 5, 6, 7, 8]
    assert "it is no state of a run" in said(tmp_path)


def lying(settings: dict[str, Any], fault: Any) -> Any:
    """Return a rank's false claim to hold a step that nobody has made."""
    true = sealed_module.sealed_files

    def claimed(*arguments: Any, **named: Any) -> Any:
        found, wrong = true(*arguments, **named)
        return {**found, Seal(1, 7, 1, 0, "job", 5000, 1): Path("/nowhere/1-7-0-of-1.sealed")}, wrong

    if os.environ["RANK"] == "1":
        agreement.sealed.sealed_files = claimed  # type: ignore[assignment]
    return script(settings, fault)


@pytest.mark.torch
def test_a_rank_that_claims_what_it_has_not_is_passed_over(killed: Path) -> None:
    resumed = attempt(2, 2, killed, {}, None, lying)
    assert resumed[0]["seen"] == [4, 5, 6, 7, 8] and "/nowhere/1-7-0-of-1.sealed can't be read" in said(killed)


@pytest.mark.torch
@pytest.mark.parametrize("victims", [[0, 1], [1]])
def test_a_second_fault_before_the_first_step_costs_nothing_more(killed: Path, victims: list[int]) -> None:
    attempt(2, 2, killed, {}, dict.fromkeys(victims, ("kill", 3)), script)
    resumed = attempt(3, 2, killed, {}, None, script)
    assert resumed[0]["seen"] == [4, 5, 6, 7, 8] and equal(resumed, through(2))


@pytest.mark.torch
def test_of_survivors_that_are_a_step_apart_the_newest_counts(tmp_path: Path, killed: Path) -> None:
    behind, ahead = tmp_path / "behind", killed
    attempt(1, 2, behind, {}, {1: ("kill", 2)}, script)
    shutil.copy(the_sealed(behind), ahead / "worker-0" / f"user-{os.getuid()}")
    assert sealed(ahead) == ["1-2-0-of-1.sealed", "1-3-0-of-1.sealed"]
    resumed = attempt(2, 2, ahead, {}, None, script)
    assert resumed[0]["seen"] == [4, 5, 6, 7, 8] and equal(resumed, through(2))


@pytest.mark.torch
def test_too_little_memory_is_a_sentence_and_the_disks_turn(tmp_path: Path) -> None:
    cgroup = tmp_path / "cgroup"
    cgroup.mkdir()
    (cgroup / "memory.max").write_text(f"{room.MARGIN + 100_000}\n")
    (cgroup / "memory.current").write_text("90000\n")
    variables = {"TRAINMASTER_CHECKPOINT_DIR": str(tmp_path / "disk"), "TRAINMASTER_CGROUP_ROOT": str(cgroup)}
    memory = tmp_path / "memory"
    attempt(1, 2, memory, {"every": 2}, KILLED, script, **variables)
    assert sealed(memory) == [] and "10,000 are free of the container's memory" in said(memory)
    assert attempt(2, 2, memory, {"every": 2}, None, script, **variables)[0]["seen"] == [3, 4, 5, 6, 7, 8]


@pytest.mark.torch
def test_nothing_is_taken_of_another_job_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    attempt(1, 2, tmp_path, {}, KILLED, script)
    file = the_sealed(tmp_path)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (file, *file.parent.glob("*.slots"), file.parent)]
    assert modes == [0o600] * (len(modes) - 1) + [0o700]
    resumed = attempt(2, 2, tmp_path, {}, None, script, TRAINMASTER_JOB_UID="another")
    assert resumed[0]["seen"] == list(range(1, 9)) and "is of another job" in said(tmp_path)


@pytest.mark.torch
def test_a_directory_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "worker-0" / f"user-{os.getuid()}").mkdir(parents=True, mode=0o755)
    assert attempt(1, 2, tmp_path, {}, None, script)[0]["seen"] == list(range(1, 9))
    assert "isn't a directory of this user's alone" in said(tmp_path)


@pytest.mark.torch
def test_what_is_half_updated_is_not_kept(tmp_path: Path) -> None:
    first = attempt(1, 2, tmp_path, {}, {0: ("half", 3), 1: ("half", 3)}, script)
    assert all("between the update and the step's end" in error for error in first)
    assert sealed(tmp_path) == [] and "step 3 was half made" in said(tmp_path)


@pytest.mark.torch
def test_a_rank_that_is_blocked_in_a_collective_keeps_its_state_at_sigterm(tmp_path: Path) -> None:
    """Its main thread waits for a stopped rank, so no signal handler runs."""

    def terminate(processes: list[int]) -> None:
        while "\nState:\tT" not in Path(f"/proc/{processes[0]}/status").read_text():
            time.sleep(0.05)
        time.sleep(0.3)  # rank 1 gets as far as it can
        os.kill(processes[1], signal.SIGTERM)
        while not sealed(tmp_path):
            time.sleep(0.05)

    ended = attempt(1, 2, tmp_path, {}, {0: ("stop", 3)}, script, meanwhile=terminate)
    assert ended == ["SIGKILL"] * 2 and sealed(tmp_path) == ["1-3-0-of-1.sealed"]
    resumed = attempt(2, 2, tmp_path, {}, None, script)
    assert resumed[0]["seen"] == [4, 5, 6, 7, 8] and equal(resumed, through(2))


@pytest.mark.torch
def test_sigterm_ends_a_run_after_a_step_with_its_state_saved(tmp_path: Path) -> None:
    disk = {"TRAINMASTER_CHECKPOINT_DIR": str(tmp_path / "disk")}
    ended = attempt(1, 2, tmp_path / "memory", {}, {1: ("terminate", 3)}, script, **disk)
    assert ended == ["exit code 143"] * 2
    [saved] = (tmp_path / "disk").glob("*.sealed")
    last = int(saved.name.split("-")[1])
    assert last in (4, 5)
    resumed = attempt(2, 2, tmp_path / "memory", {}, None, script, **disk)
    assert resumed[0]["seen"] == list(range(last + 1, 9)) and equal(resumed, through(2))


def test_the_agent_is_told_how_long_a_rank_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_SAVING_FILE", str(tmp_path / "saving"))
    with announced(3, 1 << 30):
        [file] = tmp_path.iterdir()
        assert file.name == "saving.3" and 5 < float(file.read_text()) < 10
    assert list(tmp_path.iterdir()) == [file] and float(file.read_text()) == 0


def test_an_encoded_state_is_the_state() -> None:
    state = {
        "tensors": [
            torch.randn(3, 5)[:, ::2],
            torch.tensor(2.5),
            torch.empty(0, 4),
            torch.ones(3, dtype=torch.bfloat16),
        ],
        7: (1, 2.5, None, True, "text", b"bytes", {"nested": float("inf")}),
    }
    found = decode(torch.frombuffer(bytearray(b"".join(Encoded(state).chunks())), dtype=torch.uint8))
    assert all(
        torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found["tensors"], state["tensors"], strict=True)
    )
    assert found[7] == state[7] and list(found) == list(state)
    with pytest.raises(EncodingError, match="a PosixPath"):
        Encoded({"path": Path()})


@given(some.binary(max_size=300), some.booleans())
def test_bytes_that_are_no_state_are_refused_and_do_nothing_else(data: bytes, framed: bool) -> None:
    content = len(data).to_bytes(8, "big") + data if framed else data
    try:
        decode(torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8))
    except EncodingError as error:
        assert "it is no state of a run" in str(error)

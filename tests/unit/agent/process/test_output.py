"""The ranks' output is passed on and kept, except torch's lines about dumps that the agent asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.signer import environment
from trainmaster_operator.agent.loop import Loop
from trainmaster_operator.agent.process.output import AttemptOutput, PrintedEnd, Printer, Printers
from trainmaster_operator.agent.settings import read_settings

# torch 2.11 prints the first of these lines (ProcessGroupNCCL.cpp, dumpDebuggingInfo); other versions differ.
PLACE = "[rank1]:[E703 19:54:01.074938485 ProcessGroupNCCL.cpp:1700] [PG ID 0 PG GUID 0(default_pg) Rank 1] "
DUMP = f"{PLACE}ProcessGroupNCCL preparing to dump debug info. Include stack trace: 1, only active collectives: 0"
OLD_DUMP = f"{PLACE}ProcessGroupNCCL preparing to dump debug info."
DUMPS = [DUMP, OLD_DUMP, f"{PLACE}Flight Recorder trace successfully dumped."]
TIMEOUT = (
    f"{PLACE}Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, Timeout(ms)=600000)"
)
KERNEL = "/x/Indexing.cu:250: f: block: [0,0,0], thread: [1,0,0] Assertion `index out of bounds` failed."
ASSERTED = "torch.AcceleratorError: CUDA error: device-side assert triggered"


class Rank:
    """Stands for a rank that prints to its stderr, and for the agent that reads it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._loop, self._end = folder, Loop(), PrintedEnd()
        settings = read_settings({**environment(), "TRAINMASTER_WORKER": "0", "TRAINMASTER_STATE_DIR": str(folder)})
        shown = os.open(folder / "shown", os.O_WRONLY | os.O_CREAT)
        printer = Printer(self._loop, shown, self._end)
        self.output = AttemptOutput(self._loop, settings, str(folder), Printers(printer, printer))
        self.output.open_rank_pipes(1, 0)

    def print(self, *lines: str) -> None:
        """Lets a process of the rank print lines and end."""
        with (self._folder / "rank-0.err").open("w") as stderr:
            stderr.writelines(f"{line}\n" for line in lines)
        self._loop.run_once()
        self._loop.run_once(0.0)  # an end of the pipe, if it has one

    def shown(self) -> list[str]:
        """Returns the container's log."""
        return (self._folder / "shown").read_text().splitlines()

    def kept(self) -> list[str]:
        """Returns the log from which the evidence is made."""
        return Path(self.output.log_path("rank-0.err")).read_text().splitlines()


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def test_torchs_lines_about_a_dump_that_the_agent_asked_for_are_nobodys(rank: Rank) -> None:
    rank.print("step 1", *DUMPS, "step 2", TIMEOUT, "dumped the weights")
    rank.print("step 3")
    expected = ["step 1", "step 2", TIMEOUT, "dumped the weights", "step 3"]
    assert rank.kept() == expected
    assert rank.shown() == [f"[rank 0]: {line}" for line in expected]
    assert rank.output.last_lines("rank-0").splitlines() == [each.replace("[rank1]:", "") for each in expected]


def test_what_its_next_process_prints_is_shown_as_soon_as_it_comes(rank: Rank) -> None:
    rank.print("step 1")
    rank.output.restart_rank(0)
    rank.print("step 2")
    assert rank.shown() == ["[rank 0]: step 1", "[rank 0]: step 2"]


def test_they_are_no_sign_of_life(rank: Rank) -> None:
    """Otherwise a rank that hangs would never be silent, because it is asked again and again."""
    rank.print("step 1")
    before = dict(rank.output.printed.printed_at)
    rank.print(*DUMPS)
    assert rank.output.printed.printed_at == before and 0 in before
    rank.print("step 2", DUMP)
    assert rank.output.printed.printed_at[0] > before[0]


@pytest.mark.parametrize("in_file", [True, False])
def test_a_failed_assertion_of_a_kernel_is_in_the_evidence(rank: Rank, tmp_path: Path, in_file: bool) -> None:
    raised: Sequence[str] = ("Traceback (most recent call last):", *["  File train.py"] * 200, ASSERTED)
    if in_file:
        (tmp_path / "error.json").write_text(json.dumps({"message": "\n".join(raised)}))
    rank.print(KERNEL, *([] if in_file else raised))
    assert rank.output.evidence(0, by_torchrun=False).splitlines()[-2:] == [KERNEL, ASSERTED]

"""The files that `trainmaster init` writes train under plain torchrun unchanged, and resume from their checkpoint."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
from pathlib import Path

import pytest

from tests.trainer.ranks import exit_codes, run_ranks, start_command
from trainmaster.cli.manifests import Project


def script(folder: Path, steps: int) -> str:
    """Returns what the script prints in a rank."""
    os.chdir(folder)
    os.environ["STEPS"] = str(steps)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path("train.py", run_name="__main__")
    return printed.getvalue()


def trained(folder: Path, steps: int) -> list[str]:
    """Returns what the script prints with two ranks, except which process each of them is."""
    return shown("".join(run_ranks(2, script, folder, steps)))


def shown(printed: str) -> list[str]:
    ours = (line for line in printed.splitlines() if line.strip() and not line.startswith("environment: "))
    return [line for line in ours if " is process " not in line]


def trained_by_torchrun(folder: Path, steps: int) -> list[str]:
    printed = folder.with_suffix(".txt")
    process = start_command(printed, torchrun, folder, STEPS=str(steps), OMP_NUM_THREADS="1")
    assert exit_codes([process]) == [0], printed.read_text()
    return shown(printed.read_text())


def torchrun(folder: Path) -> None:
    """Do what torchrun does; only its ranks start as a clean Python."""
    from torch.distributed.run import main

    os.chdir(folder)
    main(["--standalone", "--nproc-per-node=2", "train.py"])


@pytest.mark.torch
def test_it_trains_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    text = Project("circles", 2, 0, "x").text("train.py")
    for folder in (tmp_path / "interrupted", tmp_path / "whole"):
        folder.mkdir()
        (folder / "train.py").write_text(text)
    assert trained_by_torchrun(tmp_path / "interrupted", 50)[0].startswith("step 50/50 loss ")
    then = trained(tmp_path / "interrupted", 60)
    assert then[0].startswith("rank 0: continues after step 50, ")
    # As if nothing had been there.
    whole = trained(tmp_path / "whole", 60)
    assert then[1:] == whole[-1:] and whole[-1].startswith("step 60/60 loss ")

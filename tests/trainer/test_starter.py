"""What `trainmaster init` writes trains under plain torchrun as it is, and goes on from its checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainmaster.cli.init import Project


def trained(folder: Path, steps: int) -> str:
    """What the script prints under torchrun with two ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    environ = {**os.environ, "STEPS": str(steps), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.torch
def test_it_trains_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(Project("circles", 2, 0, "x").text("train.py"))
    first = trained(tmp_path, 50)
    assert first.startswith("step 50/50 loss ")
    then = trained(tmp_path, 60).splitlines()
    assert then[0] == "goes on after step 50"
    assert then[1].startswith("step 60/60 loss ")
    # The loss goes on falling where it was.
    assert float(then[1].split()[-1]) < float(first.split()[-1])

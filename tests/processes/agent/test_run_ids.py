"""Only rank 0 gets the id of a job's run; torchrun starts each rank through a shell."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.signer import JOB_UID, environment
from trainmaster_operator.agent.process.launcher import Launch
from trainmaster_operator.agent.settings import read_settings
from trainmaster_operator.wire.assignment import Assignment

ASSIGNMENT = Assignment(JOB_UID, 3, (0, 1), None, ("job-0.job.ns.svc", "job-1.job.ns.svc"), 28_000)


@pytest.mark.parametrize(("rank", "expected"), [("0", f"{JOB_UID} allow"), ("1", "none none")])
def test_torchruns_ranks_get_it_by_the_shell_that_becomes_them(tmp_path: Path, rank: str, expected: str) -> None:
    settings = read_settings(
        {
            **environment(),
            "TRAINMASTER_WORKER": "0",
            "TRAINMASTER_STATE_DIR": str(tmp_path),
            "NPROC_PER_NODE": "2",
        }
    )
    say = 'echo "${WANDB_RUN_ID-none} ${WANDB_RESUME-none}"'
    launch = Launch(settings, ASSIGNMENT, 0, {})
    line = launch.command_line(["/bin/sh", "-c", say])
    (tmp_path / "attempt-3").mkdir()
    arguments = line.arguments[line.arguments.index("/bin/sh") :]
    subprocess.run(arguments, env={**os.environ, "RANK": rank, "LOCAL_RANK": rank}, check=True)
    assert (tmp_path / "attempt-3" / f"rank-{rank}.out").read_text().strip() == expected
    second = launch._replace(node_rank=1).command_line(["train.sh"])
    assert "WANDB" not in " ".join(second.arguments)

"""Jobs of `bench.programs.stepping_ranks`, with the environment that those read; the same ranks under torchrun alone.

torchrun keeps one store for all rounds of ranks, and torch 2.13 gives the process groups of all rounds the same keys in
it: a rank of the second round may read the address of a dead rank of the first, and ends with "connectFullMesh failed".
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 gives each round a store of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from bench.clusters import NAMESPACE, RawObject
from bench.clusters.steps import Steps
from trainmaster.controller.apiserver.cluster import JOBS

SCRIPT = Path(__file__).parents[1] / "programs" / "stepping_ranks.py"
END_SECONDS = 20.0


def steps_file(folder: Path, name: str) -> Path:
    """Returns the file in which a job's ranks write down their steps."""
    return folder / f"{name}.steps"


def environment(folder: Path, name: str, python_path: str, *, in_memory: bool, checkpoint_steps: int) -> dict[str, str]:
    """Returns what ranks of a job read; state that isn't kept in memory is on the disk alone."""
    return {
        "STEPS_FILE": str(steps_file(folder, name)),
        "CHECKPOINT_STEPS": str(checkpoint_steps),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": python_path,
        **({} if in_memory else {"WITHOUT_MEMORY": "1"}),
    }


def stepping_job(
    name: str, workers: int, variables: dict[str, str], *, pod: dict[str, Any] | None = None, **spec: Any
) -> RawObject:
    """Returns a job of the plain script, or of trainloop where `spec` has `training`; `pod` is added to its pods'."""
    env = [{"name": key, "value": value} for key, value in variables.items()]
    program = {} if "training" in spec else {"command": ["python", str(SCRIPT)]}
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "image": "ghcr.io/trainmaster/trainer:0.1.0",
            "workers": workers,
            **program,
            "podTemplate": {"spec": {**(pod or {}), "containers": [{"name": "worker", "env": env}]}},
            **spec,
        },
    }


@contextmanager
def torchrun(folder: Path, name: str, ranks: int, checkpoint_steps: int, python_path: str) -> Iterator[Steps]:
    """Runs the plain script's ranks under torchrun, which starts them again whenever one ends; state is on the disk."""
    variables = environment(folder, name, python_path, in_memory=False, checkpoint_steps=checkpoint_steps)
    variables |= {"TRAINMASTER_CHECKPOINT_DIR": str(folder / f"{name}.checkpoints")}
    variables |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--max-restarts", "1000", str(SCRIPT)],
            env={**os.environ, **variables},
            stdout=log,
            stderr=log,
        )
    try:
        yield Steps(steps_file(folder, name))
    finally:
        # torchrun starts each rank in a session of its own; those that it leaves behind are found before it ends.
        ranks_left = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for rank in ranks_left:
            with suppress(psutil.NoSuchProcess):
                rank.kill()

"""Builds jobs that run `bench.programs.stepping_ranks`, with the environment variables that this program reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.clusters import NAMESPACE, RawObject
from trainmaster_operator.controller.apiserver.cluster import JOBS

SCRIPT = Path(__file__).parents[1] / "programs" / "stepping_ranks.py"


def steps_file(folder: Path, name: str) -> Path:
    """Returns the file in which a job's ranks record their steps."""
    return folder / f"{name}.steps"


def environment(
    folder: Path, name: str, python_path: str, *, in_memory: bool, checkpoint_steps: int, shared: bool = False
) -> dict[str, str]:
    """Returns the variables that a job's ranks read. Without `in_memory` the state is kept only on the disk.

    With `shared` the remaining ranks share a lost rank's micro-batches.
    """
    return {
        "STEPS_FILE": str(steps_file(folder, name)),
        "CHECKPOINT_STEPS": str(checkpoint_steps),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": python_path,
        **({} if in_memory else {"WITHOUT_MEMORY": "1"}),
        **({"SHARED": "1"} if shared else {}),
    }


def stepping_job(
    name: str, workers: int, variables: dict[str, str], *, pod: dict[str, Any] | None = None, **spec: Any
) -> RawObject:
    """Returns a job of the plain script, or of trainloop if `spec` contains `training`. `pod` is added to the pods."""
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

"""A tracker of experiments takes all attempts of a job for one run, because its run has the job's uid as its id. Pure.

Only rank 0 gets an id: scripts that log from every rank have a run for each of them, and would write over each other.
Weights & Biases makes a run of an id that is new and goes on with one that is known (docs.wandb.ai, "Resume a run":
WANDB_RUN_ID with WANDB_RESUME=allow; an id has at most 64 characters and none of / \\ # ? % :). MLflow refuses an id
that it hasn't given itself, so its run is looked for (`mlflow_run`); for Comet and ClearML there is no such variable.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainmaster_operator.agent.settings import Settings

WANDB_VARIABLES = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SWEEP_ID")
"""Who sets one of these decides about runs, and a sweep gives its own ids."""

MLFLOW_FOUND = "TRAINMASTER_MLFLOW_RUN_ID"
"""In a worker's environment: the run that was found for the job."""


def run_variables(settings: Settings, rank: int, base: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a rank by which its run is the job's; `base` has the user's own."""
    if rank != 0 or not settings.job_uid:
        return {}
    found: dict[str, str] = {}
    if not any(name in base for name in WANDB_VARIABLES):
        found.update(WANDB_RUN_ID=settings.job_uid, WANDB_RESUME="allow")
    if base.get(MLFLOW_FOUND):
        found["MLFLOW_RUN_ID"] = base[MLFLOW_FOUND]
    return found

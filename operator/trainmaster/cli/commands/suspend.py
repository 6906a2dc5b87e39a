"""`kubectl dtj suspend` stops jobs until they are resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainmaster.cli.connection import Connection, connected, for_each
from trainmaster.cli.job_names import JobNames, find_job
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say

if TYPE_CHECKING:
    from trainmaster.client import TrainingJob

app = Part()
# Volumes of a podTemplate that go with the pod, or that no checkpoint can be written to.
_SHORT_LIVED = frozenset({"emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image"})


@app.command()
@connected
def suspend(connection: Connection, names: JobNames) -> None:
    """Stop jobs with a checkpoint, and free what they hold.

    When they are resumed they go on from it where its volume outlives their pods: a claim does, an emptyDir doesn't.
    """
    jobs = connection.client()

    def one(name: str) -> None:
        job = find_job(jobs, name)
        if job.to_be_suspended:
            say(f"{name}: is suspended already")
            return
        jobs.suspend(name)
        say(f"{name}: to be suspended")
        lost = _lost_checkpoints(name, job)
        if lost is not None:
            say(
                f"warning: {lost}; a job whose spec.checkpoint.volume.claimName names a claim keeps its checkpoints",
                error=True,
            )

    for_each(names, one)


def _lost_checkpoints(name: str, job: TrainingJob) -> str | None:
    """Returns what goes with the pods of a job that is suspended; None: nothing, or that isn't known."""
    if job.status.attempt == 0:
        return None
    spec = job.raw["spec"]
    checkpoint = spec.get("checkpoint")
    if checkpoint is not None:
        if not (checkpoint.get("volume") or {}).get("emptyDir"):
            return None
        return (
            f"the checkpoints of {name} are on an emptyDir, which goes with its pods: it begins at step 0 when it "
            "is resumed"
        )
    volumes = ((spec.get("podTemplate") or {}).get("spec") or {}).get("volumes") or []
    if not all(map(_is_short_lived, volumes)):
        return None
    return (
        f"{name} has no spec.checkpoint, and what it saves in its pods goes with them: it begins at step 0 when it "
        "is resumed, unless its script saves elsewhere"
    )


def _is_short_lived(volume: Mapping[str, Any]) -> bool:
    sources = volume.keys() - {"name"}
    return sources <= _SHORT_LIVED

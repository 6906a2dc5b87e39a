"""Writes the messages about a suspended job: which checkpoints are lost, and from which step the job will continue."""

from __future__ import annotations

from trainmaster.client.job import TrainingJob
from trainmaster.client.objects import at, items
from trainmaster_operator.wire.values import whole

# Types of volumes that are removed with the pod or can't store checkpoints.
_SHORT_LIVED = frozenset({"emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image"})
KEEPING = "a job whose spec.checkpoint.volume.claimName names a claim keeps its checkpoints"


def lost_checkpoints(job: TrainingJob) -> str | None:
    """Describes the checkpoints that a suspended job loses with its pods. Returns None if no loss is known."""
    if job.status.attempt == 0:
        return None
    if (checkpoint := at(job.raw, "spec", "checkpoint")) is not None:
        if not at(checkpoint, "volume", "emptyDir"):
            return None
        return (
            f"the checkpoints of {job.name} are on an emptyDir, which goes with its pods: it begins at step 0 when it "
            "is resumed"
        )
    volumes = items(job.raw, "spec", "podTemplate", "spec", "volumes")
    if not all(volume.keys() - {"name"} <= _SHORT_LIVED for volume in volumes):
        return None
    return (
        f"{job.name} has no spec.checkpoint, and what it saves in its pods goes with them: it begins at step 0 when it "
        "is resumed, unless its script saves elsewhere"
    )


def start_of_resumed(job: TrainingJob) -> str:
    """Describes the step from which a suspended job will continue, as far as the status shows it."""
    lost = lost_checkpoints(job)
    if lost is not None:
        return f"{lost[0].upper()}{lost[1:]}."
    progress = job.status.progress
    step = whole(progress.step) if progress is not None else None
    if step is None:
        return "It continues from its last checkpoint, if it has one; it has reported no step."
    return (
        f"It continues from its last checkpoint. The step of that isn't known here; the last reported step is {step:,}."
    )

"""Claims that keep pods from being scheduled: not there, or not bound to a volume."""

from __future__ import annotations

from trainmaster.client.diagnosis.finding import Finding, Step
from trainmaster.client.diagnosis.objects import Object, items, name_of, text
from trainmaster.client.diagnosis.situation import Situation
from trainmaster.client.diagnosis.words import SchedulerWords


def claim_finding(situation: Situation, words: SchedulerWords) -> Finding | None:
    """Returns the finding where the scheduler's words are about a claim."""
    for missing in words.of("claim missing"):
        name = missing.about
        there = [name_of(claim) for claim in situation.claims or ()]
        evidence = () if situation.claims is None else (f"claims of the namespace: {', '.join(there) or 'none'}",)
        steps = (
            Step(f"make the claim {name} in the job's namespace first, or correct its name in the job"),
            Step("which claims there are", f"kubectl get pvc {situation.where}"),
        )
        clause = f"the PersistentVolumeClaim {name} isn't there, in the job's namespace"
        return Finding("ClaimMissing", clause, evidence, steps)
    if not words.of("claim unbound"):
        return None
    pending = [claim for claim in situation.claims or () if text(claim, "status", "phase") == "Pending"]
    used = [name for pod in situation.pods for name in claims_of(pod)]
    claim = next((claim for claim in pending if name_of(claim) in used), pending[0] if pending else None)
    name = name_of(claim) if claim is not None else next(iter(used), "")
    which = f"the PersistentVolumeClaim {name}" if name else "a PersistentVolumeClaim of the pods"
    said = next((text(event, "message") for event in situation.events_about("PersistentVolumeClaim", name or None)), "")
    storage_class = "" if claim is None else text(claim, "spec", "storageClassName")
    why = f": {said}" if said else (f" (StorageClass {storage_class})" if storage_class else "")
    steps = (
        Step("which StorageClasses there are, and which is the default", "kubectl get storageclass"),
        Step("what the claim waits for", f"kubectl describe pvc {name} {situation.where}".replace("  ", " ")),
    )
    return Finding("ClaimUnbound", f"{which} has no volume yet{why}", (), steps)


def claims_of(pod: Object) -> list[str]:
    """Returns the names of the claims that a pod mounts."""
    names = (text(volume, "persistentVolumeClaim", "claimName") for volume in items(pod, "spec", "volumes"))
    return [name for name in names if name]

"""Jobs are invented: the rows of a list as the dashboard sends them, and their changes second by second."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

NAMESPACES = ("research", "vision", "speech", "ranking")
KINDS = ("llama-8b", "vit-huge", "whisper", "dlrm", "t5-xl", "diffusion", "bert-large", "moe-16b")
TASKS = ("pretrain", "finetune", "sweep", "ablation", "eval", "distill")
PHASES = ("Running",) * 40 + ("Succeeded",) * 34 + ("Failed",) * 8 + ("Pending",) * 10
PHASES += ("Suspended",) * 3 + ("Starting",) * 3 + ("Restarting",) * 2
FAILURES = (
    "rank 3 of worker 1 was killed by SIGKILL (exit code 137)",
    "rank 12 (worker 3) ran out of memory: CUDA out of memory. Tried to allocate 2.50 GiB",
    "no rank made progress for 300 s; rank 7 waits for data, the others for it",
    "node gpu-node-21 was lost with worker 2",
    "rank 0 ended with exit code 1: FileNotFoundError: /data/shards/train-00042.tar",
)
HOSTILE = "<img src=x onerror=\"window.hacked='failure'\"> & <script>window.hacked='script'</script>"


def stamp(at: float) -> str:
    """Returns a time (seconds since the epoch) as RFC 3339."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def empty_row(uid: str, namespace: str, name: str, phase: str, created: float) -> dict[str, Any]:
    """Returns the row of a job of which only the phase is known."""
    unknown = ("step", "totalSteps", "etaSeconds", "loss", "samplesPerSecond", "goodput", "startedAt", "completedAt")
    unknown += ("failure", "failedAt", "reason", "waits", "queue")
    counts = dict.fromkeys(("attempt", "restarts", "disruptions", "running"), 0)
    row = {"uid": uid, "namespace": namespace, "name": name, "phase": phase, "createdAt": stamp(created)}
    return row | counts | dict.fromkeys(unknown) | {"desired": 4, "suspended": phase == "Suspended"}


def invented(number: int, now: float, chance: random.Random) -> dict[str, Any]:
    """Returns the row of a job."""
    phase = chance.choice(PHASES)
    name = f"{chance.choice(KINDS)}-{chance.choice(TASKS)}-{number}"
    row = empty_row(f"uid-{number}", chance.choice(NAMESPACES), name, phase, now - chance.uniform(600, 900_000))
    row["desired"] = workers = chance.choice((1, 2, 4, 4, 8, 16, 32, 64))
    if phase == "Pending":
        place = chance.randint(2, 40)
        row |= {
            "queue": "gpu",
            "waits": f"is number {place} of 41 in the queue gpu, behind {row['namespace']}/next-one",
        }
        return row
    began = now - chance.uniform(300, 500_000)
    total = chance.choice((2_000, 10_000, 50_000, 250_000))
    done = {"Succeeded": 1.0, "Starting": 0.0}.get(phase, chance.uniform(0.02, 0.98))
    restarts = chance.choice((0, 0, 0, 0, 1, 1, 2, 5))
    row |= {
        "attempt": 1 + restarts,
        "restarts": restarts,
        "disruptions": chance.choice((0, 0, 0, 1)),
        "running": {"Running": workers, "Starting": workers // 2}.get(phase, 0),
        "startedAt": stamp(began),
        "goodput": round(chance.uniform(0.72, 0.995), 4),
    }
    if phase != "Starting":
        row |= {"step": int(total * done), "totalSteps": total, "loss": round(chance.uniform(0.4, 4.2), 4)}
    if phase == "Running":
        row |= {"samplesPerSecond": round(chance.uniform(80, 9_000), 1), "etaSeconds": chance.uniform(60, 200_000)}
    if phase in ("Succeeded", "Failed"):
        row["completedAt"] = stamp(min(now, began + chance.uniform(300, 90_000)))
    if phase in ("Failed", "Restarting") or restarts:
        row |= {"failure": chance.choice(FAILURES), "failedAt": row["completedAt"] or stamp(now - 400)}
    return row


class Fleet:
    """Holds all jobs of the list; `step` advances some of them."""

    def __init__(self, jobs: int, now: float) -> None:
        self.chance = random.Random(14)
        self.rows = {row["uid"]: row for row in (invented(number, now, self.chance) for number in range(jobs))}
        hostile = empty_row("uid-hostile", "vision", "hostile-names", "Failed", now - 900)
        self.rows["uid-hostile"] = hostile | {
            "failure": HOSTILE,
            "failedAt": stamp(now - 60),
            "attempt": 2,
            "queue": HOSTILE,
        }

    def step(self, many: int) -> list[dict[str, Any]]:
        """Returns changes of some running jobs, only the fields that changed."""
        running = [row for row in self.rows.values() if row["phase"] == "Running" and row["totalSteps"]]
        changes = []
        for row in self.chance.sample(running, min(many, len(running))):
            change = {
                "step": min(row["totalSteps"], row["step"] + self.chance.randint(1, 9)),
                "loss": round(max(0.05, row["loss"] * self.chance.uniform(0.98, 1.018)), 4),
                "etaSeconds": max(1.0, (row["etaSeconds"] or 60.0) - 1),
            }
            row.update(change)
            changes.append({"uid": row["uid"], **change})
        return changes

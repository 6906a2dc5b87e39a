"""One job is invented in full: a rank was killed, a rank hung, a node was lost, and now rank 5 is slow.

Everything is a function of the time since the job was made (seconds), so that series, heat map and figures agree.
"""

from __future__ import annotations

import math
import random
from typing import Any

from tests.dashboard_pages.fleet import HOSTILE, empty_row, stamp

NAMESPACE, NAME, UID = "research", "llama-8b-pretrain", "uid-survivor"
AGE, TOTAL, RANKS, EACH = 11_400.0, 25_000, 8, 2
STEP_SECONDS, SLOW_FROM, STRAGGLER = 0.62, 9_900.0, 5
# attempt: (opened, ranks up, first step at, end, first step)
ATTEMPTS = {
    1: (45.0, 150.0, 190.0, 3_300.0, 0),
    2: (3_301.0, 3_301.6, 3_302.1, 6_480.0, 5_015),
    3: (6_482.0, 6_486.0, 6_500.0, 9_000.0, 9_500),
    4: (9_040.0, 9_102.0, 9_130.0, math.inf, 13_000),
}
HUNG_FROM = 6_180.0
WARNING = (
    f"Warning: the checkpoints of {NAME} are on an emptyDir, which goes with its pods: it begins at step 0 when it is "
    "resumed; a job whose spec.checkpoint.volume.claimName names a claim keeps its checkpoints."
)
RESUMES = "It continues from its last checkpoint. The last reported step is 15,000."
FAILURES: dict[int, dict[str, Any]] = {
    1: {
        "reason": "Signal", "worker": 2, "rank": 5, "pod": f"{NAME}-2", "node": "gpu-node-07", "exitCode": 137,
        "counted": True, "recovery": {"seconds": 2.1, "detected": 0.1, "launched": 0.6},
        "message": "rank 5 (worker 2, pod llama-8b-pretrain-2 on gpu-node-07) was killed by SIGKILL\n"
        "[rank5] step 5014/25000 loss 2.4101\n[rank5] step 5015/25000 loss 2.4093",
    },
    2: {
        "reason": "Hung", "worker": 1, "rank": 3, "pod": f"{NAME}-1", "node": "gpu-node-04", "counted": True,
        "recovery": {"seconds": 20.0},
        "message": "no rank made progress for 300 s: rank 3 (worker 1, pod llama-8b-pretrain-1 on gpu-node-04) "
        "reads data, the 7 others wait for it in all_reduce",
    },
    3: {
        "reason": "NodeLost", "worker": 3, "pod": f"{NAME}-3", "node": "gpu-node-11", "counted": False,
        "recovery": {"seconds": 130.0},
        "message": "node gpu-node-11 was lost with worker 3 (pod llama-8b-pretrain-3)",
    },
}  # fmt: skip
NODES = {0: "gpu-node-02", 1: "gpu-node-04", 2: "gpu-node-07", 3: "gpu-node-15"}
READS = """Thread 0x7f3c (most recent call first):
  File "/usr/lib/python3.12/socket.py", line 720 in readinto
  File "/app/data/shards.py", line 88 in read_shard
  File "/app/data/loader.py", line 41 in __next__
  File "/app/train.py", line 132 in train
"""
WAITS = """Thread 0x7f3c (most recent call first):
  File "/usr/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 2835 in all_reduce
  File "/usr/lib/python3.12/site-packages/torch/nn/parallel/distributed.py", line 1640 in forward
  File "/app/train.py", line 140 in train
"""


def attempt_at(age: float) -> int | None:
    """Returns the attempt whose ranks train at an age of the job (seconds); None between attempts."""
    for attempt, (_, _, begins, ends, _) in ATTEMPTS.items():
        if begins <= age < (HUNG_FROM if attempt == 2 else ends):
            return attempt
    return None


def step_seconds(rank: int, age: float) -> float:
    """Returns how long a rank takes for a step."""
    noise = random.Random(rank * 1_000_003 + int(age)).uniform(-0.02, 0.025)
    slow = 0.55 * min(1.0, (age - SLOW_FROM) / 300) if rank == STRAGGLER and age > SLOW_FROM else 0.0
    warm = 0.1 * math.exp(-(age - ATTEMPTS[attempt_at(age) or 1][2]) / 60)
    return STEP_SECONDS * (1 + noise + max(0.0, warm)) + slow


def step_at(age: float) -> int | None:
    """Returns the job's step."""
    attempt = attempt_at(age)
    if attempt is None:
        return None
    _, _, begins, _, first = ATTEMPTS[attempt]
    normal = min(age, SLOW_FROM) - min(begins, SLOW_FROM)
    return min(
        TOTAL, first + int(normal / STEP_SECONDS + max(0.0, age - max(begins, SLOW_FROM)) / (STEP_SECONDS + 0.5))
    )


def figures(rank: int, age: float) -> dict[str, Any]:
    """Returns a rank's report."""
    step = step_at(age) or 0
    chance = random.Random(rank * 7919 + int(age))
    slowest = max(step_seconds(each, age) for each in range(RANKS))
    return {
        "step": step,
        "loss": round(1.9 + 8.2 * math.exp(-step / 1_400) + chance.gauss(0, 0.025 + 0.2 * math.exp(-step / 900)), 4),
        "samplesPerSecond": round(512 / slowest / RANKS, 1),
        "stepSeconds": round(step_seconds(rank, age), 4),
        "gradNorm": round(0.8 + 2.4 * math.exp(-step / 1_800) + abs(chance.gauss(0, 0.12)), 4),
        "learningRate": 3e-4 * min(1.0, step / 500) * (0.55 + 0.45 * math.cos(math.pi * step / TOTAL)),
    }


TRAINING = {
    "loss": "", "samplesPerSecond": "samples/s", "stepSeconds": "s", "slowestStepSeconds": "s", "gradNorm": "",
    "learningRate": "", "goodput": "ratio", "eval_accuracy": "",
}  # fmt: skip
# By name: the unit, lines for each worker, the limit, a value, and by how much it varies.
SYSTEM: dict[str, tuple[str, int, float | None, float, float]] = {
    "gpuUtilization": ("ratio", EACH, None, 0.93, 0.05),
    "gpuMemoryBytes": ("bytes", EACH, 80 * 2**30, 71 * 2**30, 2**29),
    "cpuCores": ("cores", 0, 16.0, 9.0, 2.0), "memoryBytes": ("bytes", 0, 128 * 2**30, 74 * 2**30, 2**31),
    "networkReceiveBytesPerSecond": ("bytes/s", 0, None, 2.4e9, 3e8),
    "networkTransmitBytesPerSecond": ("bytes/s", 0, None, 2.1e9, 3e8),
}  # fmt: skip
LIMITS = {"gpuMemoryBytes": "gpuMemoryLimitBytes", "cpuCores": "cpuLimitCores", "memoryBytes": "memoryLimitBytes"}


def metrics() -> dict[str, Any]:
    """Returns the names of all metrics."""
    items = [{"name": name, "kind": "training", "unit": unit, "limitedBy": None} for name, unit in TRAINING.items()]
    system = ((name, unit) for name, (unit, *_) in SYSTEM.items())
    items += [{"name": name, "kind": "system", "unit": unit, "limitedBy": LIMITS.get(name)} for name, unit in system]
    return {"kind": "MetricNames", "note": None, "items": items}


def curves(born: float, now: float, names: list[str], since: float, points: int) -> dict[str, Any]:
    """Returns the metrics of all attempts, as the history does."""
    found = points_of(born, now, since, points)
    shared = {name: found[name] for name in ("at", "attempt")} | {"resolutionSeconds": max(5.0, AGE / points)}
    made = []
    for name in names:
        if name in SYSTEM:
            unit, each, limit, middle, varies = SYSTEM[name]
            lines = [
                {"worker": worker, "gpu": gpu, "of": None, "limit": limit, "values": [
                    middle + varies * math.sin(at / 90 + 7 * worker + (gpu or 0)) for at in found["at"]
                ]}
                for worker in NODES for gpu in (range(each) if each else [None])
            ]  # fmt: skip
            unknown = {"step": [None] * len(found["at"]), "redone": [False] * len(found["at"])}
            made.append({"name": name, "kind": "system", "unit": unit, **shared, **unknown, "lines": lines})
        else:
            line = {"worker": None, "gpu": None, "of": None, "limit": None, "values": found[name]}
            own = {"step": found["step"], "redone": found["redone"], "lines": [line]}
            made.append({"name": name, "kind": "training", "unit": TRAINING[name], **shared, **own})
    return {"kind": "MetricCurves", "curves": made}


def compare(born: float, now: float, metric: str, by: str, jobs: list[str], points: int) -> dict[str, Any]:
    """Returns a metric of several jobs, each a little different."""
    [curve] = curves(born, now, [metric], 0.0, points)["curves"]
    runs = []
    for number, job in enumerate(jobs):
        namespace, name, uid = job.split("/")
        values, x = curve["lines"][0]["values"], curve["step"] if by == "step" else [at - born for at in curve["at"]]
        if by == "step" and curve["kind"] == "training":
            kept = {}
            for step, value in zip(x, values, strict=True):
                kept[step] = value
            x, values = sorted(kept), [kept[step] for step in sorted(kept)]
        problem = "Nothing was recorded of it." if curve["kind"] == "system" and by == "step" else None
        run = {"namespace": namespace, "name": name, "uid": uid, "problem": problem}
        cut = 0 if problem else len(x) - number * 60
        values = [None if value is None else value * (1 + 0.07 * number) for value in values[:cut]]
        runs.append(run | {"x": x[:cut], "values": values, "attempt": [1] * cut})
    unit = curve["unit"]
    return {"kind": "RunComparison", "metric": metric, "unit": unit, "x": by, "runs": runs}


def points_of(born: float, now: float, since: float, points: int) -> dict[str, Any]:
    """Returns the reported figures of all attempts by name."""
    every = max(5.0, AGE / points)
    found: dict[str, Any] = {name: [] for name in ("at", "attempt", "step", *TRAINING, "redone")}
    furthest = 0
    # The newest point is the present one, so that curves grow while the page is open.
    for age in [*(every * point for point in range(1, int((now - born) / every))), now - born]:
        attempt, step = attempt_at(age), step_at(age)
        if attempt is not None and step is not None:
            times = sorted(step_seconds(rank, age) for rank in range(RANKS))
            mine = figures(0, age) | {"stepSeconds": times[RANKS // 2], "slowestStepSeconds": times[-1]}
            mine |= {"at": born + age, "attempt": attempt, "goodput": goodput(age), "redone": step < furthest}
            mine["samplesPerSecond"] *= RANKS
            mine["eval_accuracy"] = round(0.9 - 0.6 * math.exp(-step / 4_000), 4)
            if born + age > since:
                for name, values in found.items():
                    values.append(mine[name])
            furthest = max(furthest, step)
    return found


def goodput(age: float) -> float:
    """Returns the share of the time that was spent on new steps."""
    lost = 190 + sum(
        seconds for seconds, at in ((2, 3_300), (320, 6_480), (235, 6_735), (130, 9_130), (340, 9_470)) if at < age
    )
    return round(max(0.0, 1 - lost / age), 4)


def heat(born: float, now: float, figure: str, columns: int) -> dict[str, Any]:
    """Returns the heat map, as the history does."""
    every = (now - born) / columns
    ages = [age for age in (every * (column + 0.5) for column in range(columns)) if attempt_at(age)]
    return {
        "kind": "RankHeat",
        "figure": figure,
        "resolutionSeconds": every,
        "at": [born + age - every / 2 for age in ages],
        "attempt": [attempt_at(age) for age in ages],
        "ranks": list(range(RANKS)),
        "workers": [rank // EACH for rank in range(RANKS)],
        "values": [[figures(rank, age)[figure] for rank in range(RANKS)] for age in ages],
    }


def row(born: float, now: float, running: bool = True) -> dict[str, Any]:
    """Returns the job's row."""
    age = now - born
    mine = figures(0, age)
    last = FAILURES[3]["message"].splitlines()[0]
    return empty_row(UID, NAMESPACE, NAME, "Running", born) | {
        "attempt": 4, "restarts": 2, "disruptions": 1, "running": 4, "desired": 4, "step": mine["step"],
        "totalSteps": TOTAL,
        "etaSeconds": (TOTAL - mine["step"]) * (STEP_SECONDS + 0.5), "loss": mine["loss"], "goodput": goodput(age),
        "samplesPerSecond": mine["samplesPerSecond"] * RANKS, "startedAt": stamp(born + 2), "failure": last,
        "failedAt": stamp(born + 9_000), "reason": "AllRanksUp", "queue": "gpu",
    }  # fmt: skip


def attempts(born: float) -> list[dict[str, Any]]:
    """Returns the attempts, oldest first."""
    found = []
    for attempt, (opened, up, _, ends, first) in ATTEMPTS.items():
        failure = FAILURES.get(attempt)
        if failure is not None:
            failure = {"attempt": attempt, "failedAt": stamp(born + ends), **failure}
        found.append({
            "attempt": attempt,
            "startedAt": stamp(born + opened),
            "runningAt": stamp(born + up),
            "endedAt": None if ends == math.inf else stamp(born + ends),
            "outcome": {1: "Failed", 2: "Failed", 3: "Disrupted"}.get(attempt, "Running"),
            "failure": failure,
            "firstStep": first,
            "lastStep": step_at(min(ends, HUNG_FROM if attempt == 2 else ends) - 1) if ends != math.inf else None,
            "workers": [{"worker": worker, "pod": f"{NAME}-{worker}", "node": node} for worker, node in NODES.items()],
        })  # fmt: skip
    return found


def status(born: float, now: float) -> dict[str, Any]:
    """Returns the job's status, as far as the page reads it."""
    age = now - born
    spent: dict[str, Any] = {
        "queue": 25.0, "schedule": 20.0, "pull": 70.0, "rendezvous": 40.0, "load": 62.0, "restart": 44.0,
        "stall": 300.0, "recompute": 575.0, "checkpoint": 96.0, "data": 41.0, "evaluate": 88.0,
    }  # fmt: skip
    spent["productive"] = age - sum(spent.values())
    spent["until"] = stamp(now)
    return {"phase": "Running", "timeSpent": spent, "progress": {"epoch": 1.37}, "avoidedNodes": ["gpu-node-07"]}


def pods() -> list[dict[str, Any]]:
    """Returns the pods; one has a message that would do harm as HTML."""
    return [
        {"name": f"{NAME}-{worker}", "worker": worker, "node": node, "phase": "Running", "ready": True,
         "restarts": 1 if worker == 2 else 0, "message": HOSTILE if worker == 2 else ""}
        for worker, node in NODES.items()
    ]  # fmt: skip


def events(born: float) -> list[dict[str, Any]]:
    """Returns events of the job."""
    found = [
        (ends, "Warning", FAILURES[one]["reason"], FAILURES[one]["message"].splitlines()[0])
        for one, (_, _, _, ends, _) in ATTEMPTS.items()
        if one in FAILURES
    ]
    found += [
        (up, "Normal", "AllRanksUp", f"attempt {one}: all 8 ranks are up") for one, (_, up, _, _, _) in ATTEMPTS.items()
    ]
    found.append((40.0, "Normal", "Admitted", HOSTILE))
    return [
        {
            "at": stamp(born + at),
            "type": kind,
            "reason": reason,
            "message": message,
            "object": f"dtj/{NAME}",
            "count": 3 if kind == "Warning" else 1,
        }
        for at, kind, reason, message in found
    ]


def evidence(born: float) -> list[dict[str, Any]]:
    """Returns the evidence of the hang and of the killed rank."""
    ranks: dict[str, Any] = {}
    for rank in range(RANKS):
        culprit = rank == 3
        ranks[str(rank)] = {
            "step": 9_880 + (rank == 0),
            "section": "data" if culprit else "train",
            "silentSeconds": 300 + rank / 10,
            "waits": "nothing" if culprit else "collective",
            "text": READS if culprit else WAITS.replace("0x7f3c", f"0x7f{rank}c"),
        }
    workers = {
        str(worker): {"state": "Failed", "reason": "Hung", "rank": worker * 2, "exitCode": 68, "error": HOSTILE}
        for worker in NODES
    }
    kept = {one["attempt"]: one["failure"] for one in attempts(born) if one["failure"]}
    return [
        {
            "attempt": 1,
            "failure": kept[1],
            "workers": {"2": {"state": "Failed", "reason": "Signal", "rank": 5, "exitCode": 137}},
            "ranks": {},
            "logs": {"2": "[rank5] step 5015/25000\n"},
        },
        {"attempt": 2, "failure": kept[2], "workers": workers, "ranks": ranks, "logs": {}},
    ]


def log_line(at: float, rank: int, step: int) -> dict[str, Any]:
    """Returns a line of a rank."""
    words = f"step {step}/{TOTAL} loss {1.9 + 8.2 * math.exp(-step / 1_400):.4f} lr 2.31e-04 512 samples/s"
    if step % 50 == 0:
        words = f"checkpoint {step} saved in 1.{rank} s"
    if step % 97 == 0:
        words = HOSTILE
    return {"at": at, "worker": rank // EACH, "rank": rank, "text": f"[rank{rank}] {words}"}

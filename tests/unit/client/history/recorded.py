"""Provides a history with a realistic job, and its HTTP interface as a transport.

`bert-mrpc` trained on 8 ranks (two on each of 4 workers) from step 0 to 1000 in four attempts: rank 5 ran out of
memory, a node was lost, rank 2 hung, and each time steps were repeated. Rank 6 is slow from the third attempt on.
The first half hour has been thinned to one point every 10 s; the rest still has one every 2 s.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median
from typing import Any

from trainmaster.client.errors import JobNotFound
from trainmaster.client.history import finding
from trainmaster_operator.api.evidence import AttemptEvidence

START = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()
# The place where the cluster announces the history, and the beginning of its paths at the API server.
PLACE = "ops/our-history:http"
PROXY = "/api/v1/namespaces/ops/services/our-history:http/proxy"
UID = "8d6f6a3e-5b2c-4f0e-9d0a-1c2b3a4d5e6f"
RANKS, SLOW_RANK = 8, 6
# When each attempt began and ended (in seconds after the start), and its first and last step.
ATTEMPTS = ((0, 900, 0, 240), (912, 2100, 200, 520), (2118, 3000, 500, 700), (3010, 4200, 650, 1000))
THINNED_UNTIL, OLD_SECONDS, NEW_SECONDS = 1800, 10.0, 2.0
FAILURES: tuple[dict[str, Any], ...] = (
    {
        "attempt": 1,
        "reason": "OOMKilled",
        "message": "MemoryError: 40 GiB, at x.py:3; "
        "rank 5 (worker 2, pod bert-mrpc-2, node gpu-7) was killed for memory",
        **{"worker": 2, "rank": 5, "pod": "bert-mrpc-2", "node": "gpu-7", "exitCode": 137},
        "failedAt": "2026-11-20T12:15:00Z",
    },
    {
        "attempt": 2,
        "reason": "NodeLost",
        "message": "pod bert-mrpc-1 of worker 1 on node gpu-3 lost its node",
        **{"worker": 1, "pod": "bert-mrpc-1", "node": "gpu-3", "counted": False},
        "failedAt": "2026-11-20T12:35:00Z",
    },
    {
        "attempt": 3,
        "reason": "Hung",
        "message": "rank 2 (worker 1, pod bert-mrpc-1, node gpu-4) made no progress for 300 s while all wait",
        **{"worker": 1, "rank": 2, "pod": "bert-mrpc-1", "node": "gpu-4", "exitCode": 68},
        "failedAt": "2026-11-20T12:50:00Z",
    },
)
TIME_SPENT = {"productive": 3652.0, "recompute": 276.0, "restart": 40.0, "checkpoint": 112.0, "rendezvous": 21.0}


def moment(seconds: float) -> str:
    """Returns a time of the API, so long after the start."""
    return datetime.fromtimestamp(START + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def recorded_job(**changed: Any) -> dict[str, Any]:
    """Returns the RecordedJob."""
    return {
        **{"uid": UID, "namespace": "team", "name": "bert-mrpc", "phase": "Succeeded"},
        **{"createdAt": moment(-30), "startedAt": moment(0), "endedAt": moment(4200), "deletedAt": moment(90000)},
        **{"attempt": 4, "restarts": 2, "disruptions": 1, "step": 1000, "totalSteps": 1000},
        **{"loss": 0.2134, "goodput": 0.87, "lastFailure": FAILURES[-1], "result": {"eval/f1": 0.8812}},
        **changed,
    }


def other_job(name: str = "gpt-small", **changed: Any) -> dict[str, Any]:
    """Returns a RecordedJob that failed at once and still exists."""
    nothing = dict.fromkeys(("startedAt", "endedAt", "deletedAt", "step", "totalSteps", "loss", "goodput", "result"))
    return {
        **{**nothing, "uid": f"uid-{name}", "namespace": "team", "name": name, "phase": "Pending"},
        **{"createdAt": moment(9000), "attempt": 0, "restarts": 0, "disruptions": 0, "lastFailure": None},
        **changed,
    }


def detail(**changed: Any) -> dict[str, Any]:
    """Returns the RecordedJobDetail."""
    outcomes = ("Failed", "Disrupted", "Failed", "Succeeded")
    attempts = []
    for number, (began, ended, first, last) in enumerate(ATTEMPTS, 1):
        attempts.append(
            {
                **{"attempt": number, "startedAt": moment(began), "runningAt": moment(began + 8)},
                **{"endedAt": moment(ended), "outcome": outcomes[number - 1], "firstStep": first, "lastStep": last},
                "failure": FAILURES[number - 1] if number < 4 else None,
                "trainingWith": None,
                "workers": [{"worker": each, "pod": f"bert-mrpc-{each}", "node": f"gpu-{each}"} for each in range(4)],
            }
        )
    status = {"phase": "Succeeded", "attempt": 4, "timeSpent": {**TIME_SPENT, "until": moment(4200)}}
    metadata = {"namespace": "team", "name": "bert-mrpc", "uid": UID, "creationTimestamp": moment(-30)}
    return {
        "kind": "RecordedJobDetail",
        **recorded_job(),
        "job": {"metadata": metadata, "spec": {"workers": 4}, "status": status},
        "attempts": attempts,
        "lives": [
            {"uid": UID, "createdAt": moment(-30), "deletedAt": moment(90000)},
            {"uid": "first-life", "createdAt": moment(-90000), "deletedAt": moment(-80000)},
        ],
        **changed,
    }


def points() -> list[dict[str, Any]]:
    """Returns every recorded point, with each rank's step time, gradient norm and loss."""
    found = []
    at = 0.0
    for number, (began, ended, first, last) in enumerate(ATTEMPTS, 1):
        at = began + 10.0
        while at < ended:
            step = first + int((last - first) * (at - began) / (ended - began))
            loss = 0.2 + 2.2 * math.exp(-step / 250)
            times = [0.1 + 0.001 * rank for rank in range(RANKS)]
            if number >= 3:
                times[SLOW_RANK] = 0.25
            found.append(
                {
                    **{"at": START + at, "attempt": number, "step": step, "loss": loss, "learningRate": 5e-5},
                    **{"gradNorm": 1 + loss / 4, "samplesPerSecond": 64 / max(times), "goodput": 0.9},
                    "redone": number > 1 and step <= ATTEMPTS[number - 2][3],
                    "ranks": {"stepSeconds": times, "gradNorm": [1 + loss / 4] * RANKS, "loss": [loss] * RANKS},
                }
            )
            at += OLD_SECONDS if at < THINNED_UNTIL else NEW_SECONDS
    return found


def evidence() -> dict[str, Any]:
    """Returns the EvidenceList."""
    kept = AttemptEvidence(
        attempt=3,
        failure=FAILURES[2],
        workers={1: {"state": "Failed", "reason": "Hung", "rank": 2}},
        ranks={2: {"step": 700, "silentSeconds": 300, "text": 'File "train.py", line 40, in forward'}},
        logs={1: "step 699\nstep 700"},
    )
    return {"kind": "EvidenceList", "items": [json.loads(kept.to_json())]}


@dataclass
class RecordedHistory:
    """Answers GET as a history does. `asked` lists the paths and queries, and `answers` replaces answers.

    With a prefix, it is behind a cluster that announces it (PROXY).
    """

    prefix: str = ""
    jobs: list[dict[str, Any]] = field(default_factory=lambda: [other_job(), recorded_job()])
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    points: list[dict[str, Any]] = field(default_factory=points)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Any:
        assert (method, body) == ("GET", None)
        if self.prefix and path == finding.ROLE_PATH:
            return {"kind": "ClusterRole", "metadata": {"annotations": {finding.ANNOTATION: PLACE}}}
        assert path.startswith(self.prefix)
        path, given = path.removeprefix(self.prefix), dict(query or {})
        self.asked.append((path, given))
        part = path.rpartition("/")[2]
        if part in self.answers:
            if isinstance(self.answers[part], Exception):
                raise self.answers[part]
            return self.answers[part]
        if path == "/v1/jobs":
            return self._jobs(given)
        if not path.startswith("/v1/namespaces/team/jobs/bert-mrpc"):
            raise JobNotFound(f"No job {path.split('/')[5]} was recorded in namespace {path.split('/')[3]}.")
        match part:
            case "bert-mrpc":
                return detail(**({"uid": given["uid"]} if "uid" in given else {}))
            case "series":
                return self._series(given)
            case "metrics":
                training = [{"name": name, "kind": "training"} for name in ("loss", "eval_f1")]
                cpu = {"name": "cpuCores", "kind": "system", "unit": "cores", "limitedBy": "cpuLimitCores"}
                return {"kind": "MetricNames", "items": [*training, cpu, {"name": "gpuUtilization", "kind": "system"}]}
            case "curves":
                return self._curves(given)
            case "heat":
                return self._heat(given)
            case "evidence":
                return evidence()
            case _:
                item = {"worker": 0, "lines": ["step 999", "step 1000", "done"], "times": None, "cut": True}
                return {"kind": "LogList", "items": [item]}

    def lines(self, path: str, *, query: Mapping[str, str], read_seconds: float | None) -> Iterator[bytes]:
        raise AssertionError("a history streams nothing")

    def beginning(self, path: str, *, limit: int, seconds: float) -> bytes:
        raise AssertionError("a history has objects only")

    def _jobs(self, query: dict[str, str]) -> dict[str, Any]:
        found = [job for job in self.jobs if query.get("namespace") in (None, job["namespace"])]
        begin, limit = int(query.get("continue", 0)), int(query["limit"])
        more = str(begin + limit) if begin + limit < len(found) else ""
        return {"kind": "RecordedJobList", "items": found[begin : begin + limit], "continue": more}

    def _thinned(self, query: dict[str, str], most: int) -> tuple[float, list[dict[str, Any]]]:
        """Returns the points from `from` to `to`: all of them, or one for each of `most` spans of time."""
        begin = float(query.get("from", self.points[0]["at"]))
        end = float(query.get("to", self.points[-1]["at"]))
        found = [point for point in self.points if begin <= point["at"] <= end]
        old = any(point["at"] < START + THINNED_UNTIL for point in found)
        resolution = OLD_SECONDS if old else NEW_SECONDS
        if len(found) <= most:
            return resolution, found
        resolution = (end - begin) / most
        # A span's point has the time of the last point in it.
        kept = {int((point["at"] - begin) / resolution): point for point in found}
        return resolution, [kept[stretch] for stretch in sorted(kept)]

    def _series(self, query: dict[str, str]) -> dict[str, Any]:
        resolution, found = self._thinned(query, int(query["points"]))
        names = ("at", "attempt", "step", "loss", "learningRate", "gradNorm", "samplesPerSecond", "goodput", "redone")
        times = [point["ranks"]["stepSeconds"] for point in found]
        return {
            **{"kind": "Series", "resolutionSeconds": resolution},
            **{name: [point[name] for point in found] for name in names},
            **{"stepSeconds": list(map(median, times)), "slowestStepSeconds": list(map(max, times))},
            "timeSpent": {"productive": [point["at"] - START for point in found]},
            "metrics": {"eval_f1": [point["loss"] for point in found]} if query.get("metrics") == "eval_f1" else {},
        }

    def _curves(self, query: dict[str, str]) -> dict[str, Any]:
        resolution, found = self._thinned(query, int(query["points"]))
        shared = {"at": [point["at"] for point in found], "attempt": [point["attempt"] for point in found]}
        lines = {
            "cpuCores": [{"worker": worker, "values": [1.5 + worker] * len(found)} for worker in range(2)],
            "cpuLimitCores": [{"worker": worker, "values": [4.0] * len(found)} for worker in range(2)],
            "gpuUtilization": [{"worker": 1, "gpu": 3, "values": [0.5] * len(found)}],
        }
        named = {"kind": "system", "resolutionSeconds": resolution, **shared}
        curves = [{"name": name, **named, "lines": lines[name]} for name in query["names"].split(",")]
        return {"kind": "MetricCurves", "curves": curves}

    def _heat(self, query: dict[str, str]) -> dict[str, Any]:
        resolution, found = self._thinned(query, int(query["columns"]))
        return {
            **{"kind": "RankHeat", "figure": query["figure"], "resolutionSeconds": resolution},
            **{"at": [point["at"] for point in found], "attempt": [point["attempt"] for point in found]},
            **{"ranks": list(range(RANKS)), "workers": [rank // 2 for rank in range(RANKS)]},
            "values": [point["ranks"][query["figure"]] for point in found],
        }

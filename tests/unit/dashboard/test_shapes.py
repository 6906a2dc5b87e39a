"""The dashboard keeps only the parts of API objects that it shows or explains, so they stay small."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.processes.dashboard.fake_api import job, running_pod
from tests.why.cluster import ClusterOfObjects
from tests.why.situations import Expected, all_situations
from trainmaster.client import TrainingJob
from trainmaster.client.blocking import Blocking, run
from trainmaster.client.diagnosis import diagnose
from trainmaster.client.gathering import gather
from trainmaster.client.job import collection_path
from trainmaster.client.sentences import lost_checkpoints
from trainmaster.client.view import view_of
from trainmaster.dashboard.board import blame_of, row_of
from trainmaster.dashboard.job_answers import MOST_VALUES, manifest_of
from trainmaster.dashboard.objects import pod_row
from trainmaster.dashboard.reading import Items
from trainmaster.dashboard.shapes import MANIFEST, MOST_SPEC, answer_shape
from trainmaster.serving import Refused
from trainmaster_operator.api.trimming import LEFT_OUT, Shape, Trimmer

JOBS = collection_path("team")
FAILURE = {"attempt": 1, "reason": "Error", "node": "a", "failedAt": "2026-11-26T01:00:00Z", "message": "x\n" * 900}
CONDITION = {"type": "Running", "status": "True", "reason": "AllRanksUp", "lastTransitionTime": "T", "message": "up"}


def trimmed(answer: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
    trimmer = Trimmer(shape)
    (found,) = [*trimmer.feed(json.dumps(answer).encode()), *trimmer.end()]
    assert isinstance(found, dict)
    return found


def kept(path: str, answer: Mapping[str, Any], query: Mapping[str, str] | None = None) -> dict[str, Any]:
    return trimmed(answer, answer_shape(path, query or {}))


def full_job(**spec: Any) -> dict[str, Any]:
    made = job(
        "bert",
        failures=[FAILURE],
        conditions=[CONDITION],
        progress={"step": 3, "loss": 0.5, "goodput": 0.9, "epoch": 1.5, "result": {"accuracy": 0.5}},
        timeSpent={"until": "T", "productive": 3.0},
        nodeFailures={"a": 1},
        avoidedNodes=["a"],
        workerOrder=list(range(1_024)),
        podUIDs=["0a8cbd9e-9f51-4c56-b5a1-7d5d4b7c5d10"] * 1_024,
    )
    made["spec"] |= {"scheduling": {"queue": "gold"}, "runPolicy": {"suspend": True}, **spec}
    made["metadata"]["managedFields"] = [{"fieldsV1": {f"f:{n}": {} for n in range(150)}}]
    return {"kind": "DistributedTrainingJob", **made}


def test_of_a_list_that_takes_too_much_memory_the_first_objects_are_kept() -> None:
    items = Items(40_000)
    pods = {"kind": "PodList", "items": [running_pod(n) for n in range(100)]}
    trimmed(pods, answer_shape("/api/v1/namespaces/team/pods", {}, items.take))
    assert items.is_cut and 5 < len(items.kept) < 40 and items.weight > 40_000
    assert pod_row(items.kept[3]) == pod_row(running_pod(3))


def test_a_job_in_a_list_and_on_its_page_keeps_what_they_show() -> None:
    made = full_job(training={"x": [1] * 100_000})
    (listed,) = kept(JOBS, {"kind": "List", "items": [made]})["items"]
    assert row_of(listed) == row_of(made) and blame_of(view_of(listed)) == blame_of(view_of(made))
    opened = kept(f"{JOBS}/bert", made)
    assert row_of(opened) == row_of(made)
    assert TrainingJob.of(opened).status == TrainingJob.of(made).status
    assert len(json.dumps(listed)) < 5_000 and len(json.dumps(opened)) < 60_000


@pytest.mark.parametrize(
    "spec",
    [
        {"checkpoint": {"volume": {"emptyDir": True}}},
        {"checkpoint": {"volume": {"claimName": "c"}}},
        {},
        *(
            {"podTemplate": {"spec": {"volumes": [{"name": "v", source: {"x": "y"}}]}}}
            for source in ("emptyDir", "persistentVolumeClaim", "nfs", "csi", "hostPath", "secret")
        ),
    ],
    ids=str,
)
def test_suspend_warns_on_the_page_as_on_the_command_line(spec: dict[str, Any]) -> None:
    made = full_job(**spec)
    found = lost_checkpoints(TrainingJob.of(kept(f"{JOBS}/bert", made)))
    assert found == lost_checkpoints(TrainingJob.of(made))


def test_a_pod_keeps_what_its_row_shows() -> None:
    pod = running_pod(3)
    pod["metadata"]["annotations"] = {"x": "y" * 200_000}
    pod["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "ImagePullBackOff", "message": "none"}}
    (found,) = kept("/api/v1/namespaces/team/pods", {"kind": "PodList", "items": [pod]})["items"]
    assert pod_row(found) == pod_row(pod)
    assert len(json.dumps(found)) < 1_000


class Trimmed(ClusterOfObjects):
    """Fakes a cluster of which only the kept part is read."""

    def request(self, method: str, path: str, **more: Any) -> Any:
        return kept(path, super().request(method, path, **more), more.get("query"))


@pytest.mark.parametrize("expected", all_situations(), ids=lambda one: one.name)
def test_what_is_kept_explains_a_job_as_well_as_all_of_it(expected: Expected) -> None:
    raw = next(item for item in expected.objects if item["kind"] == "DistributedTrainingJob")
    small = kept(f"{collection_path(raw['metadata']['namespace'])}/{raw['metadata']['name']}", raw)
    whole = diagnose(run(gather(Blocking(ClusterOfObjects(expected)), TrainingJob.of(raw))))
    less = diagnose(run(gather(Blocking(Trimmed(expected)), TrainingJob.of(small))))
    # The second may change between the two.
    found, wanted = (re.sub(r"\d+ s\b", "s", json.dumps(each.to_json())) for each in (less, whole))
    assert found == wanted


def written(spec: Any) -> dict[str, Any]:
    return trimmed({**full_job(), "spec": spec}, MANIFEST)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def test_a_manifest_is_the_spec_and_no_status() -> None:
    text = manifest_of(written({"workers": 2, "training": nested(50)}), "bert")
    assert "workers: 2" in text and "status" not in text and "managedFields" not in text


def test_a_spec_that_no_job_has_is_left_out_of_its_manifest_and_says_so() -> None:
    found = written({"training": "x" * 2 * MOST_SPEC})
    assert "spec" not in found and found[LEFT_OUT] == ["spec"]


@pytest.mark.parametrize(
    ("spec", "status"),
    [({"training": nested(900)}, 422), (nested(400), 422), ({"training": [0] * MOST_VALUES}, 413)],
    ids=["900 levels", "400 levels", "many values"],
)
def test_a_manifest_that_is_too_much_is_a_sentence(spec: Any, status: int) -> None:
    with pytest.raises(Refused, match="kubectl get distributedtrainingjob bert -o yaml") as refused:
        manifest_of(written(spec), "bert")
    assert refused.value.status == status

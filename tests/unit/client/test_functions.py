"""`train` makes a job of a function, whose source files become the job's code."""

from __future__ import annotations

import tarfile
from base64 import b64decode
from io import BytesIO
from secrets import token_hex
from typing import Any

import pytest

from tests.unit.client.fakes import FakeTransport, job, pod
from trainmaster.client import InvalidRequest, JobClient, train

JOBS = "/apis/trainmaster.dev/v1alpha1/namespaces/default/distributedtrainingjobs"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


def fit(steps: int) -> None:
    print(steps)


def served() -> FakeTransport:
    made = {"kind": "ConfigMap", "metadata": {"name": "reviews-code"}}
    return FakeTransport(
        {
            f"POST {CONFIG_MAPS}": made,
            f"PATCH {CONFIG_MAPS}/reviews-code": made,
            f"DELETE {CONFIG_MAPS}/reviews-code": {"kind": "Status"},
            f"POST {JOBS}": job(),
            f"GET {JOBS}/reviews": job(phase="Running"),
        }
    )


def bodies(transport: FakeTransport) -> dict[str, Any]:
    return {f"{method} {path.rsplit('/', 1)[-1]}": body for method, path, _, body in transport.asked}


def files_in(config_map: Any) -> dict[str, str]:
    archive = BytesIO(b64decode(config_map["binaryData"]["code.tar.gz"]))
    with tarfile.open(fileobj=archive) as opened:
        return {each.name: opened.extractfile(each).read().decode() for each in opened}  # type: ignore[union-attr]


def test_a_jobs_code_is_the_functions_files_which_it_owns() -> None:
    transport = served()
    spec = {"podTemplate": {"spec": {"nodeSelector": {"rack": "a"}}}, "launcher": "exec"}
    handle = train(
        fit,
        jobs=JobClient("default", transport=transport),
        name="reviews",
        workers=3,
        gpus=2,
        arguments={"steps": 7},
        spec=spec,
    )
    asked = bodies(transport)
    assert "fit(**ARGUMENTS)" in files_in(asked["POST configmaps"])["run_function.py"]
    made = asked["POST distributedtrainingjobs"]["spec"]
    assert (made["workers"], made["resources"], made["launcher"]) == (3, {"gpus": 2}, "exec")
    assert made["podTemplate"] == spec["podTemplate"]
    assert made["command"] == ["python3", "run_function.py"]
    assert (made["code"]["configMap"], len(made["code"]["digest"])) == ("reviews-code", 64)
    assert asked["PATCH reviews-code"]["metadata"]["ownerReferences"][0]["uid"] == "uid-reviews"
    assert repr(handle) == "JobHandle('reviews', namespace='default')"


def test_a_job_that_is_refused_leaves_no_files() -> None:
    transport = served()
    transport.answers[f"POST {JOBS}"] = InvalidRequest("spec.workers: Invalid value: 0")
    with pytest.raises(InvalidRequest, match="workers"):
        train(fit, jobs=JobClient("default", transport=transport), name="reviews", workers=0, arguments={"steps": 1})
    assert transport.asked[-1][:2] == ("DELETE", f"{CONFIG_MAPS}/reviews-code")


def test_nothing_is_asked_of_the_cluster_for_a_function_that_cant_run_alone() -> None:
    transport = served()
    with pytest.raises(InvalidRequest, match="lambda"):
        train(lambda: None, jobs=JobClient("default", transport=transport))
    with pytest.raises(InvalidRequest, match=r"the code has [\d.]+ MB compressed, and a ConfigMap holds 700 KB"):
        train(fit, jobs=JobClient("default", transport=transport), arguments={"steps": token_hex(1_000_000)})
    assert transport.asked == []


def test_a_name_is_made_of_the_functions_and_is_another_one_each_time() -> None:
    def _Train_2D(steps: int) -> None:
        print(steps)

    names = []
    for _ in range(2):
        transport = served()
        train(_Train_2D, jobs=JobClient("default", transport=transport), arguments={"steps": 1})
        names.append(bodies(transport)["POST distributedtrainingjobs"]["metadata"]["name"])
    assert all(name.startswith("train-2d-") for name in names)
    assert names[0] != names[1]


def test_a_handle_has_the_clients_methods_for_its_job() -> None:
    transport = served()
    handle = train(fit, jobs=JobClient("default", transport=transport), name="reviews", arguments={"steps": 1})
    transport.answers[f"GET {JOBS}/reviews"] = job(phase="Succeeded")
    transport.answers["GET /api/v1/namespaces/default/pods"] = {"items": [pod(0)]}
    transport.streams["/api/v1/namespaces/default/pods/reviews-0/log"] = [[b"one"]]
    transport.answers[f"DELETE {JOBS}/reviews"] = {"kind": "Status"}
    assert handle.wait().phase == handle.job.phase == handle.status.phase == "Succeeded"
    transport.answers["GET /api/v1/namespaces/default/configmaps/reviews-logs"] = {"data": {"worker-1.log": "two"}}
    assert sorted(handle.logs()) == ["[worker 0] one", "[worker 1] two"]
    transport.streams["/api/v1/namespaces/default/pods/reviews-0/log"] = [[b"one"]]
    assert list(handle.logs(worker=0)) == ["one"]
    handle.delete()
    assert transport.asked[-1][0] == "DELETE"

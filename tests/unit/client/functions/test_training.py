"""`train` makes a job of a function, with its files in a ConfigMap that goes with it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.client.fakes import FakeTransport, job, pod
from trainmaster.client import InvalidRequest, JobClient, train

JOBS = "/apis/trainmaster.dev/v1alpha1/namespaces/default/distributedtrainingjobs"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


def fit(steps: int) -> None:
    print(steps)


def served() -> FakeTransport:
    made = {"kind": "ConfigMap", "metadata": {"name": "reviews-function-x2z"}}
    return FakeTransport(
        {
            f"POST {CONFIG_MAPS}": made,
            f"PATCH {CONFIG_MAPS}/reviews-function-x2z": made,
            f"DELETE {CONFIG_MAPS}/reviews-function-x2z": {"kind": "Status"},
            f"POST {JOBS}": job(),
            f"GET {JOBS}/reviews": job(phase="Running"),
        }
    )


def bodies(transport: FakeTransport) -> dict[str, Any]:
    return {f"{method} {path.rsplit('/', 1)[-1]}": body for method, path, _, body in transport.asked}


def test_a_job_mounts_the_functions_files_and_owns_them() -> None:
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
    assert "fit(**ARGUMENTS)" in asked["POST configmaps"]["data"]["run_function.py"]
    made = asked["POST distributedtrainingjobs"]["spec"]
    assert (made["workers"], made["resources"], made["launcher"]) == (3, {"gpus": 2}, "exec")
    template = made["podTemplate"]["spec"]
    assert template["nodeSelector"] == {"rack": "a"}
    assert template["volumes"][0]["configMap"] == {"name": "reviews-function-x2z"}
    [container] = template["containers"]
    assert made["command"] == ["python3", f"{container['volumeMounts'][0]['mountPath']}/run_function.py"]
    assert asked["PATCH reviews-function-x2z"]["metadata"]["ownerReferences"][0]["uid"] == "uid-reviews"
    assert "podTemplate" in spec and "volumes" not in spec["podTemplate"]["spec"]  # type: ignore[index]
    assert repr(handle) == "JobHandle('reviews', namespace='default')"


def test_a_job_that_is_refused_leaves_no_files() -> None:
    transport = served()
    transport.answers[f"POST {JOBS}"] = InvalidRequest("spec.workers: Invalid value: 0")
    with pytest.raises(InvalidRequest, match="workers"):
        train(fit, jobs=JobClient("default", transport=transport), workers=0, arguments={"steps": 1})
    assert transport.asked[-1][:2] == ("DELETE", f"{CONFIG_MAPS}/reviews-function-x2z")


def test_nothing_is_asked_of_the_cluster_for_a_function_that_cant_run_alone() -> None:
    transport = served()
    with pytest.raises(InvalidRequest, match="lambda"):
        train(lambda: None, jobs=JobClient("default", transport=transport))
    with pytest.raises(InvalidRequest, match=r"have 800,\d+ bytes, and a job takes 700,000"):
        train(fit, jobs=JobClient("default", transport=transport), arguments={"steps": "x" * 800_000})
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
    assert list(handle.logs()) == ["one"]
    handle.delete()
    assert transport.asked[-1][0] == "DELETE"

"""spec.securityContext restricts the worker's container, and lists the places where it can still write."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster_operator.api.parsing import InvalidJob, parse_spec
from trainmaster_operator.api.v1alpha1 import JobIdentity
from trainmaster_operator.rendering import first_assignment, render

JOB = JobIdentity("team", "bert", "3f1d6c1e-0000-4000-8000-000000000000")


def pod(**given: Any) -> dict[str, Any]:
    spec = parse_spec({"workers": 1, **given}, JOB.name)
    body = render(JOB, spec, first_assignment(JOB, spec))[-1].body
    found: dict[str, Any] = body["spec"]["template"]["spec"]
    return found


def worker(**given: Any) -> dict[str, Any]:
    (found,) = pod(**given)["containers"]
    return dict(found)


def mounts(container: dict[str, Any]) -> dict[str, str]:
    return {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}


READ_ONLY = {"readOnlyRootFilesystem": True}


def test_with_a_read_only_root_tmp_and_home_can_be_written_to() -> None:
    found = worker(securityContext=READ_ONLY)
    assert found["securityContext"]["readOnlyRootFilesystem"] is True
    assert mounts(found)["/tmp"] == "trainmaster-tmp"
    assert {"name": "trainmaster-tmp", "emptyDir": {}} in pod(securityContext=READ_ONLY)["volumes"]
    assert variables(found)["HOME"] == "/tmp"
    assert variables(found)["TORCHINDUCTOR_CACHE_DIR"].startswith("/tmp/")


def test_without_it_nothing_is_added() -> None:
    found = worker()
    assert set(found["securityContext"]) == {"allowPrivilegeEscalation", "capabilities"}
    assert "/tmp" not in mounts(found)
    assert "HOME" not in variables(found)


def test_a_place_is_mounted_once() -> None:
    found = worker(securityContext=READ_ONLY, checkpoint={"path": "/tmp/", "volume": {"claimName": "ckpt"}})
    assert [path for path in mounts(found) if path.startswith("/tmp")] == ["/tmp/"]


def test_the_pod_template_can_override_it() -> None:
    own = {
        "name": "worker",
        "securityContext": {"readOnlyRootFilesystem": False, "runAsUser": 7},
        "env": [{"name": "HOME", "value": "/scratch"}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
    }
    template = {"spec": {"containers": [own], "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}]}}
    found = worker(securityContext={**READ_ONLY, "runAsUser": 1000}, podTemplate=template)
    assert found["securityContext"]["readOnlyRootFilesystem"] is False
    assert found["securityContext"]["runAsUser"] == 7
    assert mounts(found)["/tmp"] == "scratch"
    assert variables(found)["HOME"] == "/scratch"


def test_the_bundled_image_runs_as_its_own_user_unless_the_job_says_otherwise() -> None:
    assert pod()["securityContext"]["runAsNonRoot"] is True
    assert "runAsNonRoot" not in pod(securityContext={"runAsUser": 0})["securityContext"]
    assert worker(securityContext={"runAsNonRoot": False})["securityContext"]["runAsNonRoot"] is False


def test_root_that_must_not_be_root_is_refused() -> None:
    with pytest.raises(InvalidJob, match=r"spec\.securityContext\.runAsUser: 0 is root, and runAsNonRoot is true"):
        parse_spec({"workers": 1, "securityContext": {"runAsNonRoot": True, "runAsUser": 0}}, JOB.name)

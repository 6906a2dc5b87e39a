"""`kubectl dtj suspend`, `resume` and `scale` send one small patch, or none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cli.dtj_command import JOBS, RUNNING, run
from tests.unit.client.fakes import FakeTransport, job
from trainmaster.client import JobNotFound


def suspended(**status: Any) -> dict[str, Any]:
    found = job(**status)
    found["spec"]["runPolicy"] = {"suspend": True}
    return found


def test_suspend_and_resume_are_a_small_patch_each(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(**RUNNING), f"PATCH {JOBS}/reviews": job(**RUNNING)}
    assert run("suspend", "reviews").stdout == "reviews: suspending\n"
    transport.answers[f"GET {JOBS}/reviews"] = suspended(phase="Suspended")
    assert run("resume", "reviews").output == "reviews: resuming\n"
    assert [body for method, _, _, body in transport.asked if method == "PATCH"] == [
        {"spec": {"runPolicy": {"suspend": suspend}}} for suspend in (True, False)
    ]


def test_suspend_and_resume_of_what_is_so_already_write_nothing_and_say_so(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": suspended(phase="Suspended")}
    assert run("suspend", "reviews").output == "reviews: already suspended\n"
    transport.answers = {f"GET {JOBS}/reviews": job(**RUNNING)}
    assert run("resume", "reviews").output == "reviews: is not suspended; it is Running\n"
    assert {method for method, *_ in transport.asked} == {"GET"}


@pytest.mark.parametrize("verb", ["suspend", "resume"])
@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_suspend_and_resume_of_a_finished_job_change_nothing(transport: FakeTransport, verb: str, phase: str) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(phase=phase)}
    result = run(verb, "reviews")
    assert result.exit_code == 1
    sentence = f"error: Job reviews has ended ({phase}): there is nothing to {verb}, and nothing was changed.\n"
    assert result.stderr == sentence
    assert {method for method, *_ in transport.asked} == {"GET"}


def test_scale_is_a_small_patch(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(**RUNNING), f"PATCH {JOBS}/reviews": job(**RUNNING)}
    assert run("scale", "reviews", "--workers", "3").output == "reviews: 3 workers, 2 before\n"
    assert [body for method, _, _, body in transport.asked if method == "PATCH"] == [{"spec": {"workers": 3}}]


def test_of_several_jobs_those_that_are_refused_are_reported_and_the_others_are_done(transport: FakeTransport) -> None:
    transport.answers = {
        f"GET {JOBS}/gone": JobNotFound("not found"),
        f"GET {JOBS}": {"items": []},
        **{f"{verb} {JOBS}/reviews": job(**RUNNING) for verb in ("GET", "PATCH")},
    }
    result = run("suspend", "gone", "dtj/reviews", "reviews")
    assert (result.exit_code, result.stdout) == (1, "reviews: suspending\n")
    assert result.stderr.startswith("error: There is no job gone in namespace default; ")


def warning(transport: FakeTransport, spec: dict[str, Any], **status: Any) -> str:
    """Suspends a job and returns the warning that `suspend` prints on stderr."""
    found = job(**{**RUNNING, **status})
    found["spec"] |= spec
    transport.answers = {f"GET {JOBS}/reviews": found, f"PATCH {JOBS}/reviews": found}
    result = run("suspend", "reviews")
    assert (result.exit_code, result.stdout) == (0, "reviews: suspending\n")
    return str(result.stderr)


def volumes(*sources: dict[str, Any]) -> dict[str, Any]:
    return {"podTemplate": {"spec": {"volumes": [{"name": "v", **source} for source in sources]}}}


EMPTY_DIR = {"checkpoint": {"volume": {"emptyDir": True}, "path": "/checkpoints"}}


def test_suspend_warns_that_checkpoints_on_an_empty_dir_go_with_the_pods(transport: FakeTransport) -> None:
    assert warning(transport, EMPTY_DIR) == (
        "warning: the checkpoints of reviews are on an emptyDir, which goes with its pods: it begins at step 0 when it "
        "is resumed; a job whose spec.checkpoint.volume.claimName names a claim keeps its checkpoints\n"
    )


@pytest.mark.parametrize("spec", [{}, volumes({"emptyDir": {}}, {"configMap": {"name": "c"}}, {})], ids=str)
def test_suspend_warns_where_no_volume_outlives_the_pods(transport: FakeTransport, spec: dict[str, Any]) -> None:
    assert warning(transport, spec) == (
        "warning: reviews has no spec.checkpoint, and what it saves in its pods goes with them: it begins at step 0 "
        "when it is resumed, unless its script saves elsewhere; a job whose spec.checkpoint.volume.claimName names a "
        "claim keeps its checkpoints\n"
    )


@pytest.mark.parametrize(
    "spec",
    [
        {"checkpoint": {"volume": {"claimName": "checkpoints"}, "path": "/checkpoints"}},
        {"checkpoint": {"volume": {"hostPath": "/data"}, "path": "/checkpoints"}},
        volumes({"emptyDir": {}}, {"persistentVolumeClaim": {"claimName": "checkpoints"}}),
        volumes({"nfs": {"server": "s", "path": "/"}}),
    ],
    ids=str,
)
def test_suspend_warns_of_no_volume_that_outlives_the_pods(transport: FakeTransport, spec: dict[str, Any]) -> None:
    assert warning(transport, spec) == ""


def test_suspend_warns_of_no_job_that_has_not_begun(transport: FakeTransport) -> None:
    assert warning(transport, EMPTY_DIR, attempt=0, phase="Pending") == ""

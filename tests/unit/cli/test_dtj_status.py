"""`kubectl dtj status`: what a person sees of one job, and of all."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from tests.unit.cli.dtj_command import JOBS, PODS, RUNNING, condition, run
from tests.unit.client.fakes import FakeTransport, job, pod
from trainmaster.cli import dtj
from trainmaster.client import NotAllowed


def test_status_shows_attempt_progress_workers_and_who_failed(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(**RUNNING), f"GET {PODS}": {"items": [pod(0), pod(1)]}}
    result = run("status", "reviews")
    assert result.exit_code == 0
    for words in (
        "Running  attempt 2  restarts 1  workers 2/2",
        "step 120/1000",
        "loss 0.3142",
        "5,123 samples/s",
        "ETA 75s",
        "OOMKilled: attempt 1, rank 5, pod reviews-1, node gpu-7, exit code 137",
        "CUDA out of memory",
        "recovered in 0.41 s: seen 0.00, told 0.10, stopped 0.20, launched 0.01, first step 0.10",
        "reviews-1",
    ):
        assert words in result.output


def test_status_shows_who_is_a_spare(transport: FakeTransport) -> None:
    workers = {"desired": 2, "running": 2, "spares": 1}
    found = job(**{**RUNNING, "workers": workers, "workerOrder": [0, 2]})
    transport.answers = {f"GET {JOBS}/reviews": found, f"GET {PODS}": {"items": [pod(0), pod(1), pod(2)]}}
    output = run("status", "reviews").output
    assert "workers 2/2  spares 1" in output
    assert [line.split("  ")[0] for line in output.splitlines() if "reviews-" in line and "Running" in line] == [
        "0",
        "1 (spare)",
        "2",
    ]


def test_status_shows_where_the_time_went(transport: FakeTransport) -> None:
    spent = {"until": "2026-11-21T05:00:00Z", "productive": 540.0, "recompute": 45.2, "restart": 13.8, "queue": 1.0}
    progress = {**RUNNING["progress"], "goodput": 0.9}
    transport.answers = {
        f"GET {JOBS}/reviews": job(**{**RUNNING, "timeSpent": spent, "progress": progress}),
        f"GET {PODS}": {"items": []},
    }
    lines = run("status", "reviews").output.splitlines()
    bar = next(line for line in lines if line.startswith("time "))
    assert (bar.count("█"), bar.count("▒")) == (36, 4)
    legend = lines[lines.index(bar) + 1]
    assert legend.split("  ") == ["productive 9m0s (90%)", "recompute 45s (8%)", "restart 14s (2%)", "queue 1.0s (<1%)"]
    assert "goodput 90%" in "\n".join(lines)


def test_status_without_a_name_lists_the_jobs(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}": {"items": [job("b", phase="Succeeded"), job("a", **RUNNING)]}}
    lines = run("status").output.splitlines()
    assert lines[0].split() == ["NAME", "PHASE", "ATTEMPT", "RESTARTS", "WORKERS", "STEP", "LOSS", "AGE"]
    assert lines[1].split()[:7] == ["a", "Running", "2", "1", "2/2", "120/1000", "0.3142"]
    assert lines[2].split()[:2] == ["b", "Succeeded"]


def test_status_of_all_namespaces_says_whose_each_job_is(transport: FakeTransport) -> None:
    others = job("a", **RUNNING)
    others["metadata"]["namespace"] = "team-b"
    everywhere = JOBS.replace("/namespaces/default", "")
    transport.answers = {f"GET {everywhere}": {"items": [others, job("z", phase="Failed")]}}
    lines = run("status", "-A").output.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["NAMESPACE", "NAME", "PHASE"],
        ["default", "z", "Failed"],
        ["team-b", "a", "Running"],
    ]
    assert json.loads(run("status", "-A", "-o", "json").output)["items"][1]["metadata"]["namespace"] == "team-b"
    assert run("status", "-A", "a").exit_code == 2


ACCEPTED = condition("Accepted", "True", "SpecAccepted", "the spec can be run")


def test_status_says_what_stands_in_the_way_and_not_that_nothing_did(transport: FakeTransport) -> None:
    waiting = condition("Running", "False", "NameTaken", "Service 'reviews' belongs to another owner")
    transport.answers = {
        f"GET {JOBS}/reviews": job(phase="Pending", conditions=[ACCEPTED, waiting]),
        f"GET {PODS}": {"items": []},
    }
    output = run("status", "reviews").output
    assert "belongs to another owner" in output
    assert "can be run" not in output


def test_status_says_a_failure_that_ended_the_job_once(transport: FakeTransport) -> None:
    said = "rank 5 of reviews-1 exited with 1\nRuntimeError: shapes differ"
    failure = {"attempt": 2, "reason": "NonZeroExit", "message": said, "failedAt": "2026-11-21T04:00:00Z"}
    ended = condition("Failed", "True", "MaxRestartsExceeded", f"{said}; no restart is left")
    transport.answers = {
        f"GET {JOBS}/reviews": job(phase="Failed", failures=[failure], conditions=[ACCEPTED, ended]),
        f"GET {PODS}": {"items": []},
    }
    lines = run("status", "reviews").output.splitlines()
    assert [line for line in lines if "RuntimeError" in line or "exited" in line] == [
        *("  rank 5 of reviews-1 exited with 1", "  RuntimeError: shapes differ")
    ]
    assert lines[-1] == "no restart is left"


def test_status_says_that_no_operator_has_seen_the_job(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(), f"GET {PODS}": {"items": []}}
    assert "no operator has accepted this job yet" in run("status", "reviews").output


def test_status_says_which_nodes_the_job_avoids(transport: FakeTransport) -> None:
    blamed = {**RUNNING, "avoidedNodes": ["gpu-7"], "nodeFailures": {"gpu-7": 3, "gpu-8": 1}}
    transport.answers = {f"GET {JOBS}/reviews": job(**blamed), f"GET {PODS}": {"items": []}}
    assert "avoids nodes: gpu-7 (3 failures)\n" in run("status", "reviews").output


def test_status_is_shown_also_to_those_who_may_not_see_pods(transport: FakeTransport) -> None:
    refusal = 'pods is forbidden: User "ann" cannot list resource "pods"'
    transport.answers = {f"GET {JOBS}/reviews": job(**RUNNING), f"GET {PODS}": NotAllowed(refusal)}
    result = run("status", "reviews")
    assert result.exit_code == 0
    assert "Running  attempt 2" in result.output
    assert f"(without its pods: {refusal})" in result.output


def test_status_says_how_old_the_books_are_while_a_script_reports_no_progress(transport: FakeTransport) -> None:
    spent = {"until": "2026-11-21T05:00:00Z", "rendezvous": 1.4}
    transport.answers = {f"GET {JOBS}/reviews": job(phase="Running", timeSpent=spent), f"GET {PODS}": {"items": []}}
    assert "without progress reports" in run("status", "reviews").output
    transport.answers[f"GET {JOBS}/reviews"] = job(phase="Succeeded", timeSpent=spent)
    assert "without progress reports" not in run("status", "reviews").output


def test_status_as_json_is_the_api_s_own(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(**RUNNING)}
    assert json.loads(run("status", "reviews", "-o", "json").output) == job(**RUNNING)


def test_without_a_terminal_nothing_is_cut_and_a_row_is_a_line(transport: FakeTransport) -> None:
    long = "bert-large-uncased-whole-word-masking-finetuned-on-squad-with-seed-42"
    node = "ip-10-0-0-1.eu-central-1.compute.internal.example.com"
    one = {**pod(0, name=long), "spec": {"nodeName": node}}
    transport.answers = {
        f"GET {JOBS}": {"items": [job(long, **RUNNING), job("a")]},
        f"GET {JOBS}/{long}": job(long, **RUNNING),
        f"GET {PODS}": {"items": [one]},
    }
    for columns in ("20", "80"):
        environment = {"COLUMNS": columns}
        rows = CliRunner().invoke(dtj.app, ["status"], env=environment).output.splitlines()
        assert [row.split()[0] for row in rows] == ["NAME", "a", long]
        view = CliRunner().invoke(dtj.app, ["status", long], env=environment).output
        assert any(line.split()[:2] == ["0", f"{long}-0"] and node in line for line in view.splitlines())
        assert "\x1b" not in view and "…" not in view


def test_wrong_output_format_is_a_usage_error(transport: FakeTransport) -> None:
    result = run("status", "-o", "yml")
    assert result.exit_code == 2
    assert "'yml' is not known; use json or yaml or name or wide" in result.output


def test_only_jobs_with_such_labels_are_listed(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}": {"items": []}}
    result = run("list", "-l", "team=nlp")
    assert result.stderr == "No DistributedTrainingJobs in namespace default with team=nlp.\n"
    assert [query for _, _, query, _ in transport.asked] == [{"labelSelector": "team=nlp"}]

"""`kubectl dtj status` shows one job in detail, or a line for each job."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.unit.cli.dtj_command import JOBS, PODS, RUNNING, condition, run
from tests.unit.client.fakes import FakeTransport, job, pod
from tests.unit.reconciling import builders
from trainmaster.cli import dtj
from trainmaster.cli.show import job_view
from trainmaster.client import NotAllowed, TrainingJob


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
        "recovered in 0.41 s, 12 steps repeated: "
        "detected 0.00, assigned 0.10, stopped 0.20, launched 0.01, first step 0.10",
        "reviews-1",
    ):
        assert words in result.output


def test_a_job_in_trouble_has_a_line_in_the_list_and_in_its_status(transport: FakeTransport) -> None:
    since = (datetime.now(UTC) - timedelta(minutes=5)).isoformat()
    stall = {"since": since, "usualSeconds": 0.05, "message": "rank 1 is at train.py:41\nmore"}
    stalled = job(**{**RUNNING, "progress": {**RUNNING["progress"], "stall": stall}})
    transport.answers = {f"GET {JOBS}/reviews": stalled, f"GET {PODS}": {"items": []}}
    transport.answers[f"GET {JOBS}"] = {"items": [stalled, job("well", **RUNNING)]}
    trouble = "no step for 5 min (a step takes 0.05 s): rank 1 is at train.py:41"
    shown = run("status", "reviews").output
    assert shown.splitlines()[1] == trouble and "ETA" not in shown and "samples/s" not in shown
    assert run("list").output.splitlines()[3:] == [f"reviews: {trouble}"]


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (
            {
                **{"continues": 1, "absentRanks": [1], "trainingWith": "3 of 4 workers"},
                "attemptStartTime": "2026-11-21T04:00:00Z",
                "conditions": [
                    condition("Running", "True", "Continued", "attempt 2: training with …; worker 1 is starting")
                ],
            },
            "training with 3 of 4 workers for 14 s; worker 1 is starting",
        ),
        (
            {
                "continues": 1,
                "conditions": [
                    condition("Running", "True", "Joined", "attempt 3: training with all 4 workers; continued with …")
                ],
            },
            "continued with …",
        ),
        ({}, "all ranks restarted: worker 2's ranks can't continue: they have finished"),
    ],
)
def test_status_shows_who_trains_on(status: dict[str, Any], line: str) -> None:
    failures = [{**RUNNING["failures"][0], "notContinued": "worker 2's ranks can't continue: they have finished"}]
    console = Console(file=io.StringIO(), width=200)
    found = TrainingJob.of(job(**{**RUNNING, "failures": failures, **status}))
    console.print(job_view(found, (), datetime(2026, 11, 21, 4, 0, 14, tzinfo=UTC)))
    output = console.file
    assert isinstance(output, io.StringIO)
    assert line in [each.strip() for each in output.getvalue().splitlines()]


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
    assert legend.split("  ") == ["productive 9m (90%)", "recompute 45s (8%)", "restart 13s (2%)", "queue 1.0s (<1%)"]
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


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        ({"maxRestarts": 0}, "attempt 1 failed; no restart is left (failurePolicy.maxRestarts is 0)"),
        ({"rules": [{"action": "Fail", "exitCodes": [1]}]}, "attempt 1 failed (failurePolicy.rules)"),
        ({"backoff": {"initialSeconds": 9}}, "attempt 1 ended; the next attempt waits 9 s"),
    ],
)
def test_status_says_a_failure_that_ended_an_attempt_once(
    transport: FakeTransport, policy: dict[str, Any], left: str
) -> None:
    of = builders.job(builders.running(), failurePolicy=policy)
    reports = builders.said(1, "Failed", error="Traceback:\n  File 'train.py', line 6\nRuntimeError: shapes differ")
    status = builders.decided(of, builders.settled(of, builders.observed(reports))).status
    wire = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    transport.answers = {f"GET {JOBS}/reviews": job(**wire), f"GET {PODS}": {"items": []}}
    lines = run("status", "reviews").output.splitlines()
    assert sum("shapes differ" in line for line in lines) == 1
    assert lines[-1] == left


def test_status_says_once_what_ended_several_attempts_in_the_same_way(transport: FakeTransport) -> None:
    def failure(attempt: int, rank: int, message: str) -> dict[str, Any]:
        pod, node = f"reviews-{rank}", f"gpu-{'abc'[rank]}"
        said = f"worker {rank} (pod {pod}, node {node}) ended with exit code 1:\n{message}"
        where = {"rank": rank, "pod": pod, "node": node, "exitCode": 1}
        return {"attempt": attempt, "reason": "Error", "message": said, "failedAt": "2026-11-21T04:00:00Z", **where}

    failures = [
        failure(4, 0, "pid 4711 at 0x7f3a: shapes differ"),
        failure(3, 1, "pid 815 at 0x81bc: shapes differ"),
        failure(2, 1, "pid 816: file not found"),
        failure(1, 0, "pid 17 at 0x1: shapes differ"),
    ]
    transport.answers = {f"GET {JOBS}/reviews": job(phase="Failed", failures=failures), f"GET {PODS}": {"items": []}}
    assert run("status", "reviews").output.splitlines()[1:-1] == [
        "Error: attempt 4, rank 0, pod reviews-0, node gpu-a, exit code 1",
        "  worker 0 (pod reviews-0, node gpu-a) ended with exit code 1:",
        "  pid 4711 at 0x7f3a: shapes differ",
        "Error: attempt 3, rank 1, pod reviews-1, node gpu-b, exit code 1 (the same as attempt 4)",
        "Error: attempt 2, rank 1, pod reviews-1, node gpu-b, exit code 1",
        "  worker 1 (pod reviews-1, node gpu-b) ended with exit code 1:",
        "  pid 816: file not found",
        "Error: attempt 1, rank 0, pod reviews-0, node gpu-a, exit code 1 (the same as attempt 4)",
    ]


@pytest.mark.parametrize("phase", ["Failed", "Succeeded", "Suspended", "Restarting"])
def test_a_job_that_does_not_run_has_no_speed_and_no_eta(transport: FakeTransport, phase: str) -> None:
    found = job(**{**RUNNING, "phase": phase})
    transport.answers = {
        **{f"GET {JOBS}/reviews": found, f"GET {PODS}": {"items": []}, f"GET {JOBS}": {"items": [found]}}
    }
    output = run("status", "reviews").output
    assert "step 120/1000" in output and "samples/s" not in output and "ETA" not in output
    assert "5123" not in run("list", "-o", "wide").output


def test_status_names_the_command_that_resumes_a_suspended_job(transport: FakeTransport) -> None:
    of = builders.job(builders.running(), runPolicy={"suspend": True})
    status = builders.decided(of, builders.observed(given=[])).status
    wire = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    transport.answers = {f"GET {JOBS}/reviews": job(**wire), f"GET {PODS}": {"items": []}}
    lines = run("status", "reviews").output.splitlines()
    assert lines[-1] == ("runPolicy.suspend is true; to resume: kubectl dtj resume reviews -n default")


def test_a_job_that_is_being_suspended_still_holds_its_resources(transport: FakeTransport) -> None:
    held = condition("Running", "False", "Suspended", "runPolicy.suspend is true; set it to false to continue")
    transport.answers = {
        f"GET {JOBS}/reviews": job(
            phase="Suspending", workers={"desired": 2, "created": 1}, conditions=[ACCEPTED, held]
        ),
        f"GET {PODS}": {"items": []},
    }
    lines = run("status", "reviews").output.splitlines()
    assert lines[0].startswith("reviews  Suspending")
    assert lines[-1] == "the ranks save a checkpoint and stop; 1 pod left"


def test_a_job_that_kueue_holds_is_not_resumed_by_a_user(transport: FakeTransport) -> None:
    waiting = condition("Running", "False", "Queued", "waiting for quota in queue gpus")
    transport.answers = {
        f"GET {JOBS}/reviews": job(phase="Suspended", conditions=[ACCEPTED, waiting]),
        f"GET {PODS}": {"items": []},
    }
    assert run("status", "reviews").output.splitlines()[-1] == "waiting for quota in queue gpus"


def test_status_says_that_no_operator_has_seen_the_job(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(), f"GET {PODS}": {"items": []}}
    assert "No operator has accepted this job yet" in run("status", "reviews").output


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


BOOKED = "2026-11-21T05:00:00Z"
LATER = datetime.fromisoformat(BOOKED) + timedelta(seconds=39)


def legend(status: dict[str, Any], *pods: dict[str, Any]) -> list[str]:
    """Returns the legend of a job's time, 39 s after the operator last accounted for it."""
    of = TrainingJob.of(job(**{"attempt": 1, "workers": {"desired": 2, "created": 2}, **status}))
    console = Console(width=100, file=io.StringIO())
    console.print(job_view(of, pods, LATER))
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    bar = next(at for at, line in enumerate(lines) if line.startswith("time "))
    return lines[bar + 1 :][:2]


@pytest.mark.parametrize("phase", ["Pending", "Starting", "Restarting", "Suspended"])
def test_a_waiting_job_says_for_how_long_without_a_guess_at_its_account(phase: str) -> None:
    shown = legend({"phase": phase, "timeSpent": {"until": BOOKED, "queue": 1.0}})
    assert shown == ["queue 1.0s (100%)", f"last 39s {phase}, not accounted yet"]


def test_status_says_how_old_the_books_are_while_a_script_reports_no_progress() -> None:
    spent = {"until": BOOKED, "rendezvous": 1.4}
    running = legend({"phase": "Running", "timeSpent": spent}, pod(0), pod(1))
    assert running == ["rendezvous 1.4s (100%)", "last 39s without progress reports, not accounted yet"]
    assert legend({"phase": "Succeeded", "timeSpent": spent}) == ["rendezvous 1.4s (100%)"]


def test_progress_in_a_narrow_terminal_breaks_between_its_figures_only() -> None:
    progress = {**RUNNING["progress"], "goodput": 0.9, "result": {"accuracy": 0.5}}
    console = Console(width=80, file=io.StringIO())
    console.print(job_view(TrainingJob.of(job(**{**RUNNING, "progress": progress})), [], LATER))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for figure in ("step 120/1000", "loss 0.3142", "5,123 samples/s", "ETA 75s", "goodput 90%", "accuracy 0.5"):
        assert figure in text


def test_the_legend_of_the_time_breaks_between_its_entries_only() -> None:
    names = ("productive", "recompute", "data", "checkpoint", "evaluate", "stall", "load", "rendezvous", "restart")
    spent = {"until": BOOKED, **dict.fromkeys(names, 700.0)}
    view = job_view(TrainingJob.of(job(phase="Succeeded", timeSpent=spent)), [], LATER)
    console = Console(width=80, file=io.StringIO())
    console.print(view)
    lines = console.file.getvalue().splitlines()[2:]  # type: ignore[attr-defined]
    entries = [entry.strip() for line in lines for entry in line.split("  ") if entry.strip()]
    assert sorted(entries) == sorted(f"{name} 11m (11%)" for name in names)
    assert 2 < len(lines) < 5


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


@pytest.mark.parametrize("command", [["list"], ["list", "-A"], ["status"], ["status", "reviews"]], ids=" ".join)
def test_on_a_terminal_a_row_that_is_wider_is_one_line_that_the_terminal_breaks(
    transport: FakeTransport, command: list[str]
) -> None:
    found = job(**RUNNING)
    everywhere = JOBS.replace("/namespaces/default", "")
    listed = {"items": [found]}
    transport.answers = {f"GET {JOBS}": listed, f"GET {everywhere}": listed, f"GET {JOBS}/reviews": found}
    # rich considers it a terminal of 80 columns.
    environment = {"FORCE_COLOR": "1", "TERM": "dumb"}
    lines = CliRunner().invoke(dtj.app, [*command, "-o", "wide"], env=environment).output.splitlines()
    assert [("GOODPUT" in line, "75s" in line) for line in lines] == [(True, False), (False, True)]


def test_wrong_output_format_is_a_usage_error(transport: FakeTransport) -> None:
    result = run("status", "-o", "yml")
    assert result.exit_code == 2
    assert "'yml' is not known; use json or yaml or name or wide" in result.output


def test_only_jobs_with_such_labels_are_listed(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}": {"items": []}}
    result = run("list", "-l", "team=nlp")
    assert result.stderr == "No jobs in namespace default with team=nlp.\n"
    assert [query for _, _, query, _ in transport.asked] == [{"labelSelector": "team=nlp"}]

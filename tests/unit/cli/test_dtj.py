"""`kubectl dtj`: what a person sees, and the exit codes that scripts go by."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.unit.client.fakes import FakeTransport, event, job, pod
from trainmaster.api.evidence import AttemptEvidence
from trainmaster.cli import dtj, watching
from trainmaster.cli.console import SafeConsole
from trainmaster.client import JobClient, JobNotFound, NoCluster, NotAllowed

JOBS = "/apis/trainmaster.dev/v1alpha1/namespaces/default/distributedtrainingjobs"
PODS = "/api/v1/namespaces/default/pods"

RUNNING: dict[str, Any] = {
    "phase": "Running",
    "attempt": 2,
    "restarts": 1,
    "workers": {"desired": 2, "created": 2, "running": 2},
    "startTime": "2026-11-21T04:00:00Z",
    "progress": {"step": 120, "totalSteps": 1000, "loss": 0.31416, "samplesPerSecond": 5123.4, "etaSeconds": 75},
    "failures": [
        {
            "attempt": 1,
            "reason": "OOMKilled",
            "message": "CUDA out of memory",
            "worker": 1,
            "rank": 5,
            "pod": "reviews-1",
            "node": "gpu-7",
            "exitCode": 137,
            "failedAt": "2026-11-21T04:01:00Z",
            "recovery": {"seconds": 0.412, "seen": 0, "told": 0.1, "stopped": 0.2, "launched": 0.012, "firstStep": 0.1},
        }
    ],
}


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> FakeTransport:
    fake = FakeTransport()
    monkeypatch.setattr(dtj, "_client", lambda namespace, kubeconfig, context: JobClient("default", transport=fake))
    return fake


def run(*arguments: str) -> Any:
    return CliRunner().invoke(dtj.app, list(arguments), env={"COLUMNS": "160", "NO_COLOR": "1"})


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
    assert json.loads(run("status", "-A", "-o", "json").output)[1]["namespace"] == "team-b"
    assert run("status", "-A", "a").exit_code == 2


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
    at = "2026-11-21T04:00:00Z"
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


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


@pytest.mark.parametrize(
    "name", ["dtj/reviews", "distributedtrainingjob.trainmaster.dev/reviews", "DistributedTrainingJob/reviews"]
)
def test_a_name_can_be_given_as_kubectl_prints_it(transport: FakeTransport, name: str) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(phase="Succeeded")}
    assert run("wait", name).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("logs", "reviews", "--worker", "x"), "Invalid value for --worker: 'x' is no whole number"),
        (("logs", "reviews", "--tail", "-1"), "Invalid value for --tail: '-1' is too small; use at least 0"),
        (("evidence", "reviews", "--attempt", "1.5"), "Invalid value for --attempt: '1.5' is no whole number"),
        (("describe", "reviews"), "No such command 'describe'. Use kubectl describe dtj."),
    ],
)
def test_wrong_usage_has_a_sentence(transport: FakeTransport, arguments: tuple[str, ...], sentence: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.output.splitlines()[-1] == f"Error: {sentence}"


@pytest.mark.parametrize("name", ["", "a/b", "..", "A", "a b", "dtj/", "x" * 254, "a\n"])
@pytest.mark.parametrize("command", ["status", "logs", "wait", "suspend", "resume", "evidence"])
def test_what_no_job_can_be_named_is_wrong_usage_and_asks_nothing(
    transport: FakeTransport, command: str, name: str
) -> None:
    result = run(command, name)
    assert result.exit_code == 2
    assert "is no name of a job" in result.output
    assert transport.asked == []


def suspended(**status: Any) -> dict[str, Any]:
    found = job(**status)
    found["spec"]["runPolicy"] = {"suspend": True}
    return found


def test_suspend_and_resume_are_a_small_patch_each(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(**RUNNING), f"PATCH {JOBS}/reviews": job(**RUNNING)}
    assert run("suspend", "reviews").output == "reviews: to be suspended\n"
    transport.answers[f"GET {JOBS}/reviews"] = suspended(phase="Suspended")
    assert run("resume", "reviews").output == "reviews: to go on\n"
    assert [body for method, _, _, body in transport.asked if method == "PATCH"] == [
        {"spec": {"runPolicy": {"suspend": suspend}}} for suspend in (True, False)
    ]


def test_suspend_and_resume_of_what_is_so_already_write_nothing_and_say_so(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": suspended(phase="Suspended")}
    assert run("suspend", "reviews").output == "reviews: is suspended already\n"
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


def test_status_as_json_is_the_api_s_own(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(**RUNNING)}
    assert json.loads(run("status", "reviews", "-o", "json").output)["status"] == RUNNING


@pytest.mark.parametrize(("phase", "code"), [("Succeeded", 0), ("Failed", 1)])
def test_wait_exits_by_how_the_job_ended(transport: FakeTransport, phase: str, code: int) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(**{**RUNNING, "phase": phase})}
    result = run("wait", "reviews")
    assert result.exit_code == code
    assert f"reviews: {phase}" in result.output


def test_wait_says_why_a_job_failed(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(**{**RUNNING, "phase": "Failed"})}
    assert "reviews: Failed (OOMKilled of rank 5, exit code 137)" in run("wait", "reviews").output


def test_wait_says_why_a_job_failed_that_no_rank_failed(transport: FakeTransport) -> None:
    over = condition("Failed", "True", "DeadlineExceeded", "active for longer than 60 s")
    transport.answers = {f"GET {JOBS}/reviews": job(**{**RUNNING, "phase": "Failed", "conditions": [over]})}
    assert "reviews: Failed (DeadlineExceeded: active for longer than 60 s)" in run("wait", "reviews").output


@pytest.mark.parametrize(
    ("phase", "wanted", "code"),
    [("Succeeded", "running", 0), ("Succeeded", "failed", 1), ("Succeeded", "Suspended", 1), ("Failed", "failed", 0)],
)
def test_wait_for_a_phase_that_cant_come_any_more_fails(
    transport: FakeTransport, phase: str, wanted: str, code: int
) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(phase=phase)}
    assert run("wait", "reviews", "--for", wanted).exit_code == code


def test_wait_refuses_a_phase_and_a_time_that_are_none(transport: FakeTransport) -> None:
    for wrong in (["--for", "Succeded"], ["--timeout", "soon"], ["--timeout", ""]):
        assert run("wait", "reviews", *wrong).exit_code == 2
    transport.answers = {f"GET {JOBS}/reviews": job(phase="Running")}
    assert "is Running after 0 s" in run("wait", "reviews", "--timeout", "0s").output


@pytest.mark.parametrize(
    ("text", "wanted"), [("30", 30.0), ("2.5", 2.5), ("30s", 30.0), ("5m", 300.0), ("1h30m", 5400.0)]
)
def test_durations_are_parsed_as_kubectl_parses_them(text: str, wanted: float) -> None:
    assert dtj.seconds(text) == wanted


def test_wait_exits_with_3_when_the_time_is_over(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(phase="Running")}
    result = run("wait", "reviews", "--timeout", "0")
    assert (result.exit_code, result.output) == (3, "error: Job reviews is Running after 0 s.\n")


def test_a_missing_job_is_one_sentence_and_exit_code_1(transport: FakeTransport) -> None:
    sentence = 'distributedtrainingjobs.trainmaster.dev "review" not found'
    transport.answers = {f"GET {JOBS}/review": JobNotFound(sentence), f"GET {JOBS}": NotAllowed("may not list")}
    result = run("logs", "review")
    assert (result.exit_code, result.output) == (1, f"error: {sentence}\n")


@pytest.mark.parametrize("command", ["status", "logs", "wait", "suspend", "resume", "evidence"])
def test_a_missing_job_comes_with_the_names_that_are_near(transport: FakeTransport, command: str) -> None:
    transport.answers = {
        f"GET {JOBS}/review": JobNotFound("not found"),
        f"GET {JOBS}": {"items": [job(), job("other")]},
    }
    result = run(command, "review")
    assert result.exit_code == 1
    assert result.stderr == "error: There is no job review in namespace default; did you mean reviews?\n"


def test_logs_of_several_workers_name_each(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(**RUNNING), f"GET {PODS}": {"items": [pod(0), pod(1)]}}
    transport.streams = {f"{PODS}/reviews-{worker}/log": [[f"hello {worker}".encode()]] for worker in (0, 1)}
    assert run("logs", "reviews").output == "[worker 0] hello 0\n[worker 1] hello 1\n"


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


def test_watching_into_a_pipe_is_a_row_for_each_change_that_shows(transport: FakeTransport) -> None:
    running = job(**RUNNING, version="2")
    transport.answers = {f"GET {JOBS}/reviews": job(version="1")}
    transport.streams = {
        JOBS: [[event("MODIFIED", each) for each in (running, running, job(phase="Succeeded", version="3"))]]
    }
    result = run("status", "reviews", "-w")
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [
        ["NAME", "PHASE"],
        ["reviews", "Pending"],
        ["reviews", "Running"],
        ["reviews", "Succeeded"],
    ]
    assert result.exit_code == 0


def test_watching_all_jobs_shows_new_changed_and_deleted_ones(transport: FakeTransport) -> None:
    changes = [
        event("ADDED", job("b", version="5")),
        event("MODIFIED", job("a", phase="Running", version="6")),
        event("DELETED", job("a", phase="Running", version="7")),
    ]
    first = {"items": [job("a", version="4")], "metadata": {"resourceVersion": "4"}}
    later = {"items": [job("c", phase="Starting")], "metadata": {}}
    transport.answers = {f"GET {JOBS}": [first, first, later, NoCluster("The cluster at x doesn't answer.")]}
    transport.streams = {JOBS: [changes, []]}
    result = run("status", "-w")
    assert [line.split()[:2] for line in result.stdout.splitlines()[1:]] == [
        ["a", "Pending"],
        ["b", "Pending"],
        ["a", "Running"],
        ["a", "Deleted"],
        ["b", "Deleted"],
        ["c", "Starting"],
    ]
    assert (result.exit_code, result.stderr) == (1, "error: The cluster at x doesn't answer.\n")


def test_watching_as_json_is_a_document_in_a_line_for_each_change(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(**RUNNING)}
    transport.streams = {JOBS: [[event("MODIFIED", job(phase="Succeeded", version="3"))]]}
    documents = [json.loads(line) for line in run("status", "reviews", "-w", "-o", "json").stdout.splitlines()]
    assert [document["phase"] for document in documents] == ["Running", "Succeeded"]
    assert documents[0]["status"] == RUNNING


@pytest.mark.parametrize("output", [[], ["-o", "json"]])
def test_watching_a_job_that_is_deleted_ends_with_1(transport: FakeTransport, output: list[str]) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(**RUNNING)}
    transport.streams = {JOBS: [[event("DELETED", job(**RUNNING))]]}
    result = run("status", "reviews", "-w", *output)
    assert (result.exit_code, result.stderr) == (1, "error: Job reviews was deleted while it was watched.\n")


def test_the_clock_moves_between_events_and_asks_the_cluster_nothing(
    transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "TICK_SECONDS", 0.001)
    drawn: list[str] = []
    ended = threading.Event()

    def draw() -> str:
        drawn.append("")
        if len(drawn) == 5:
            ended.set()
        return "now"

    def views() -> Iterator[watching.View]:
        yield draw
        assert ended.wait(20)

    watching.draw(SafeConsole(), views())
    assert len(drawn) >= 5
    assert transport.asked == []


def test_wrong_output_format_is_a_usage_error(transport: FakeTransport) -> None:
    result = run("status", "-o", "yml")
    assert result.exit_code == 2
    assert "'yml' is not known; use json" in result.output


def kept(*attempts: AttemptEvidence) -> dict[str, Any]:
    return {"data": {f"attempt-{one.attempt}.json": one.to_json() for one in attempts} | {"attempt-9.json": "damaged"}}


HANG = AttemptEvidence(
    2,
    {"reason": "Hung", "rank": 1, "worker": 1, "pod": "reviews-1", "exitCode": 68, "message": "no progress\x1b[2J"},
    {0: {"state": "Stopped"}, 1: {"state": "Failed", "reason": "Hung", "rank": 1, "error": "in stuck"}},
    {
        0: {"step": 7, "waits": True, "collective": 12, "text": "\n".join(f"frame {n}" for n in range(30))},
        1: {"step": 7, "state": "T", "silentSeconds": 61.2, "text": "\n".join(f"mine {n}" for n in range(30))},
    },
    {1: "last words"},
)
CONFIG_MAP = "/api/v1/namespaces/default/configmaps/reviews-evidence"


def test_evidence_shows_the_culprit_first_and_a_rank_whole_when_asked(transport: FakeTransport) -> None:
    crash = AttemptEvidence(1, {"reason": "Signal"})
    transport.answers = {f"GET {JOBS}/reviews": job(**RUNNING), f"GET {CONFIG_MAP}": kept(HANG, crash)}
    output = run("evidence", "reviews").output
    lines = output.splitlines()
    assert lines[0] == "Attempt 1: Signal"
    assert "Attempt 2: Hung of worker 1, rank 1, pod reviews-1, exit code 68" in lines
    assert "\x1b" not in output, "what pods said can't command a terminal"
    culprit = lines.index("  Rank 1: step 7, no progress for 61 s, stopped by a signal (state T)")
    assert lines[culprit + 30] == "    mine 29"
    bystander = lines.index("  Rank 0: step 7, last entered collective 12, waits in a collective")
    assert culprit < bystander
    assert lines[bystander + 13] == "    ... 18 more lines: --rank 0"
    assert "  Worker 1: Failed, Hung, rank 1" in lines
    assert lines[-2:] == ["  The log of worker 1 ends:", "    last words"]
    whole = run("evidence", "reviews", "--attempt", "2", "--rank", "0").output
    assert "    frame 29" in whole
    assert "mine 29" not in whole and "Attempt 1" not in whole
    found = json.loads(run("evidence", "reviews", "-o", "json").output)
    assert [one["attempt"] for one in found] == [1, 2]


def test_a_job_without_evidence_says_so(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(**RUNNING), f"GET {CONFIG_MAP}": JobNotFound("none")}
    assert run("evidence", "reviews").output.startswith("No evidence was kept of job reviews")

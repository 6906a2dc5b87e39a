"""`kubectl dtj history` lists recorded jobs, and shows a job with the output kept of its attempts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from typer.testing import CliRunner

from tests.unit.cli.dtj_command import run
from tests.unit.cli.test_hostile_text import HOSTILE, assert_harmless, in_a_pipe, on_a_terminal
from tests.unit.client.history.recorded import UID, RecordedHistory, detail, other_job, recorded_job
from trainmaster.cli import dtj
from trainmaster.cli.commands import module_of
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say
from trainmaster.client import JobNotFound, NoCluster, NotAllowed

JOB = "/v1/namespaces/team/jobs/bert-mrpc"


def rows(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()]


def test_jobs_are_listed_newest_first_and_those_that_are_gone_are_marked(history: RecordedHistory) -> None:
    heading, pending, done = rows(run("history").stdout)
    assert heading == ["NAME", "PHASE", "ATTEMPTS", "RESTARTS", "STEP", "LOSS", "GOODPUT", "STARTED", "DURATION"]
    assert pending == ["gpt-small", "Pending", "0", "0"]
    assert done[:7] == ["bert-mrpc", "Succeeded", "(deleted)", "4", "2", "1000/1000", "0.2134"]
    assert (done[7], done[9:]) == ("87%", ["ago", "70m"])
    assert history.asked == [("/v1/jobs", {"namespace": "team", "limit": "100"})]


def test_wide_has_the_last_failure_and_all_namespaces_have_a_column(history: RecordedHistory) -> None:
    history.jobs.append(other_job("elsewhere", namespace="lab"))
    lines = run("history", "-A", "-o", "wide").stdout.splitlines()
    assert lines[0].split()[0] == "NAMESPACE" and lines[0].endswith(
        "UID                                   LAST FAILURE"
    )
    assert lines[2].endswith(f"{UID}  Hung: rank 2 made no progress for 300 s while all wait")
    assert lines[3].startswith("lab        elsewhere")
    assert history.asked[0][1] == {"limit": "100"}


def test_a_limit_is_kept_and_what_is_left_out_is_said(history: RecordedHistory) -> None:
    history.jobs = [other_job(f"job-{number}") for number in range(1200)]
    result = run("history", "--limit", "2")
    assert [row[0] for row in rows(result.stdout)] == ["NAME", "job-0", "job-1"]
    assert result.stderr == "Only the newest 2 are shown: --limit 0 shows all.\n"
    result = run("history", "--limit", "0", "-o", "name")
    assert len(result.stdout.splitlines()) == 1200 and result.stderr == ""
    assert [query.get("continue") for _, query in history.asked[1:]] == [None, "500", "1000"]


def test_a_list_without_an_end_ends(history: RecordedHistory) -> None:
    history.answers["jobs"] = {"kind": "RecordedJobList", "items": [recorded_job()], "continue": "again"}
    assert run("history", "--limit", "0").exit_code == 0
    assert len(history.asked) == 2


def test_objects_and_names_are_for_programs(history: RecordedHistory) -> None:
    history.jobs.append(recorded_job(uid="first-life"))
    listed = json.loads(run("history", "-o", "json").stdout)
    assert (listed["kind"], [item["uid"] for item in listed["items"]]) == (
        "RecordedJobList",
        ["uid-gpt-small", UID, "first-life"],
    )
    named = run("history", "-o", "name").stdout.splitlines()
    assert named == [f"distributedtrainingjob.trainmaster.dev/{name}" for name in ("gpt-small", "bert-mrpc")]
    assert json.loads(run("history", named[1], "-o", "json").stdout) == detail()
    assert yaml.safe_load(run("history", "bert-mrpc", "-o", "yaml").stdout) == detail()
    assert run("history", "bert-mrpc", "-o", "name").stdout.strip() == named[1]
    assert rows(run("history", "bert-mrpc", "-o", "wide").stdout)[1][0] == "bert-mrpc"


def test_no_jobs_is_a_sentence(history: RecordedHistory) -> None:
    history.jobs = []
    assert run("history").stderr == "No jobs were recorded in namespace team.\n"
    assert run("history", "-A").stderr == "No jobs were recorded in any namespace.\n"
    assert json.loads(run("history", "-o", "json").stdout)["items"] == []


def test_a_job_is_a_page_whole_in_a_pipe(history: RecordedHistory) -> None:
    result = run("history", "bert-mrpc")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("bert-mrpc  Succeeded (deleted)  attempt 4")
    assert "\nstep, slowest  ▁" in result.stdout
    assert not [line for line in result.stdout.splitlines() if line != line.rstrip()]
    # If several jobs had this name, the curves belong to the job on the page.
    life = {"uid": UID}
    assert history.asked == [
        *((JOB, {}), (f"{JOB}/metrics", life)),
        (f"{JOB}/series", {**life, "points": "1000", "metrics": "eval_f1"}),
    ]
    assert "\neval_f1        " in result.stdout


def test_an_earlier_job_of_that_name_is_asked_for_by_its_uid(history: RecordedHistory) -> None:
    assert "uid first-life" in run("history", "bert-mrpc", "--uid", "first-life").stdout
    assert [query["uid"] for _, query in history.asked] == ["first-life"] * 3


def test_an_attempt_is_its_evidence(history: RecordedHistory) -> None:
    output = run("history", "bert-mrpc", "--attempt", "3").stdout
    assert output.startswith("Attempt 3: Hung of worker 1, rank 2, pod bert-mrpc-1, node gpu-4, exit code 68")
    assert 'File "train.py", line 40, in forward' in output
    assert "The log of worker 1 ends:\n" in output and "step 700" in output
    assert f"{JOB}/logs" not in [path for path, _ in history.asked]
    [kept] = json.loads(run("history", "bert-mrpc", "--attempt", "3", "-o", "json").stdout)
    assert kept["failure"]["reason"] == "Hung"


def test_of_an_attempt_without_evidence_its_failure_is_shown(history: RecordedHistory) -> None:
    output = run("history", "bert-mrpc", "--attempt", "1").stdout
    assert output.startswith("Attempt 1: OOMKilled of worker 2, rank 5") and "MemoryError: 40 GiB" in output
    assert json.loads(run("history", "bert-mrpc", "--attempt", "1", "-o", "json").stdout) == []


def test_the_last_attempt_has_the_ends_of_the_logs(history: RecordedHistory) -> None:
    assert run("history", "bert-mrpc", "--attempt", "4").stdout.splitlines() == [
        *("Attempt 4: Succeeded", "  The log of worker 0 ends:", "    step 999", "    step 1000", "    done")
    ]
    history.answers["logs"] = NotAllowed("ann may not get pods/log")
    result = run("history", "bert-mrpc", "--attempt", "4")
    assert (result.exit_code, result.stderr) == (0, "The logs can't be shown: ann may not get pods/log\n")


def test_evidence_that_cant_be_read_back_is_none(history: RecordedHistory) -> None:
    history.answers["evidence"] = {"kind": "EvidenceList", "items": [{"attempt": 3, "ranks": [1]}]}
    assert run("history", "bert-mrpc", "--attempt", "3").stdout.startswith("Attempt 3: Hung of worker 1")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("bert-mrpc", "-A"), "a job is in one namespace; name that with --namespace"),
        (("--uid", "u"), "needs the name of a job"),
        (("--attempt", "2"), "needs the name of a job"),
        (("--export", "x.csv"), "needs the name of a job"),
        (("bert-mrpc", "--ranks"), "goes with --export FILE"),
        (("bert-mrpc", "--force"), "goes with --export FILE"),
        (("bert-mrpc", "--format", "csv"), "goes with --export FILE"),
        (("bert-mrpc", "--export", "x.csv", "--attempt", "1"), "doesn't go with --export, which writes all attempts"),
        (("bert-mrpc", "--export", "x.csv", "-o", "json"), "doesn't go with --export, which has --format"),
        (("bert-mrpc", "--export", "x.xlsx"), "Give --format csv, json or parquet"),
        (("bert-mrpc", "--export", "-"), "what format is stdout to have?"),
        (("bert-mrpc", "--export", "-", "--format", "parquet"), "Parquet goes to a file"),
        (("bert-mrpc", "--export", "x", "--format", "xlsx"), "'xlsx' is not known; use csv or json or parquet"),
        (("bert-mrpc", "--attempt", "3", "-o", "name"), "an attempt is printed as json or yaml"),
        (("BAD NAME",), "is no name of a job"),
        (("--limit", "-1"), "--limit"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_a_sentence(history: RecordedHistory, words: tuple[str, ...], sentence: str) -> None:
    result = run("history", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    error, see = result.stderr.splitlines()
    assert sentence in error and see.startswith("See 'kubectl dtj history --help'")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("other",), "error: No job other was recorded in namespace team.\n"),
        (("bert-mrpc", "--attempt", "9"), "error: Job bert-mrpc has no attempt 9: 1 to 4 were recorded\n"),
        (("other", "--export", "never.csv"), "error: No job other was recorded in namespace team.\n"),
    ],
    ids=str,
)
def test_what_wasnt_recorded_is_a_sentence(history: RecordedHistory, words: tuple[str, ...], sentence: str) -> None:
    result = run("history", *words)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", sentence)
    assert not Path("never.csv").exists()


@pytest.mark.parametrize("part", ["jobs", "bert-mrpc", "series"])
def test_a_broken_history_is_a_sentence(history: RecordedHistory, part: str) -> None:
    history.answers[part] = {"kind": "RecordedJobList", "items": 7}
    if part == "jobs":
        result = run("history")
    else:
        history.answers[part] = {"kind": "Pod"}
        result = run("history", "bert-mrpc")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: The history at ") and len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        *((), ("-A",), ("-o", "wide"), ("-o", "name"), ("-o", "json"), ("-o", "yaml")),
        *(("bert-mrpc",), ("bert-mrpc", "-o", "wide"), ("bert-mrpc", "--attempt", "3")),
        *(("bert-mrpc", "--attempt", "4"), ("bert-mrpc", "--attempt", "3", "-o", "yaml")),
    ],
    ids=" ".join,
)
def test_texts_of_others_cant_command_a_terminal(
    history: RecordedHistory, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    failure = {"reason": HOSTILE, "message": f"{HOSTILE}\n{HOSTILE}", "pod": HOSTILE, "node": HOSTILE, "rank": HOSTILE}
    texts = {"name": HOSTILE, "namespace": HOSTILE, "uid": HOSTILE, "phase": HOSTILE, "startedAt": HOSTILE}
    job = recorded_job(**texts, lastFailure=failure, result={HOSTILE: 1.0})
    history.jobs = [{**job, "namespace": "team"}]
    attempts = [{**each, "outcome": HOSTILE, "failure": failure} for each in detail()["attempts"]]
    lives = [{"uid": f"{HOSTILE}2", "createdAt": HOSTILE}]
    history.answers |= {
        "bert-mrpc": {**detail(), **job, "attempts": attempts, "lives": lives, "job": {"status": {"phase": HOSTILE}}},
        "evidence": {
            "kind": "EvidenceList",
            "items": [{"attempt": 3, "failure": failure, "logs": {"0": HOSTILE}, "workers": {"1": failure}}],
        },
        "logs": {"kind": "LogList", "items": [{"worker": 0, "lines": [HOSTILE]}]},
    }
    for output in (
        on_a_terminal(monkeypatch, dtj.app, ("history", *words)),
        in_a_pipe(dtj.app, ("history", *words)),
    ):
        assert_harmless(output)


def test_recorded_names_are_completed(history: RecordedHistory) -> None:
    environment = {"_KUBECTL_DTJ_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}

    def completed(words: str) -> list[str]:
        given = {**environment, "_TYPER_COMPLETE_ARGS": f"kubectl-dtj history {words}"}
        return CliRunner().invoke(dtj.app, [], prog_name="kubectl dtj", env=given).output.split()

    history.jobs.append(recorded_job(uid="first-life"))
    assert completed("") == ["gpt-small", "bert-mrpc"]
    assert completed("b") == ["bert-mrpc"]
    history.answers["jobs"] = NoCluster("away")
    assert completed("b") == []
    history.answers["jobs"] = JobNotFound("nothing")
    assert completed("b") == []


def test_the_historys_process_is_beneath_the_command_and_a_job_of_that_name_is_reached(
    history: RecordedHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ModuleType("server")
    vars(server)["app"] = group = Part()
    group.callback()(lambda: None)

    @group.command("serve")
    def serve(port: int = 1) -> None:
        """Serve."""
        say(f"serving at {port}")

    monkeypatch.setitem(sys.modules, module_of("history-server"), server)
    assert run("history", "serve", "--port", "7").stdout == "serving at 7\n"
    assert run("history", "serve", "--help").stdout.startswith("Usage: kubectl dtj history serve [OPTIONS]\n")
    refused = run("-n", "team", "history", "serve")
    assert refused.stderr.startswith("error: 'serve' doesn't take --namespace of the connection")
    assert history.asked == []
    assert run("history", "dtj/serve").stderr == "error: No job serve was recorded in namespace team.\n"
    assert run("history", "-n", "team", "serve").stderr == "error: No job serve was recorded in namespace team.\n"

"""`kubectl dtj why` prints one cause, its evidence, and a command to paste; without a name it lists jobs in trouble."""

from __future__ import annotations

import json

import pytest

from tests.unit.cli.dtj_command import run
from tests.why.cluster import ClusterOfObjects
from tests.why.situations import NAMESPACE, Expected, all_situations
from trainmaster.cli.connection import Connection
from trainmaster.client import JobClient


def situation(name: str) -> Expected:
    return next(one for one in all_situations() if one.name == name)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Expected:
    expected = situation(request.param)
    namespace = next(one for one in expected.objects if one["kind"] == "DistributedTrainingJob")["metadata"][
        "namespace"
    ]
    monkeypatch.setattr(
        Connection, "client", lambda options: JobClient(namespace, transport=ClusterOfObjects(expected))
    )
    return expected


@pytest.mark.parametrize("cluster", ["eight GPUs a worker, and the best node has four free"], indirect=True)
def test_a_cause_comes_first_then_evidence_then_what_to_paste(cluster: Expected) -> None:
    result = run("why", "big")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    asks = "each worker asks for 8 GPUs, and the nearest node, gpu-a, has 4 of 8 free"
    assert lines[0] == f"big is pending: {asks}."
    assert lines[1] == "Evidence:"
    assert "  node gpu-a has 4 of 8 GPUs free" in lines
    assert "  2 nodes without the labels that the pod's nodeSelector or affinity asks for" in lines
    below = lines[lines.index("Next:") + 1 :]
    assert all(line.startswith(("  # ", "  kubectl ")) for line in below)
    assert any(f"-n {NAMESPACE}" in line for line in below)


@pytest.mark.parametrize("cluster", ["eight GPUs a worker, and the best node has four free"], indirect=True)
def test_on_a_terminal_lines_break_between_words_and_commands_stay_whole(
    cluster: Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, whole_brief = run("why", "big").output, run("why").output
    monkeypatch.setattr("trainmaster.cli.commands.jobs.terminal_width", lambda: 60)
    narrow = run("why", "big").output.splitlines()
    commands = [line for line in whole.splitlines() if line.startswith("  kubectl ")]
    assert commands and set(commands) <= set(narrow)
    assert [line for line in narrow if len(line) > 60 and line not in commands] == []
    assert " ".join(" ".join(narrow).replace("#", " ").split()) == " ".join(whole.replace("#", " ").split())
    below = narrow[narrow.index("Next:") + 1 :]
    assert all(line.startswith(("  # ", "  kubectl ")) for line in below)
    brief = run("why").output.splitlines()
    assert len(brief) > 1 and all(len(line) <= 60 for line in brief)
    assert " ".join(" ".join(brief).split()) == whole_brief.strip()


@pytest.mark.parametrize("cluster", ["only CPU is short, and nodes can't be read"], indirect=True)
def test_what_may_not_be_read_is_said(cluster: Expected) -> None:
    output = run("why", "cpus").output
    assert "Not read:\n  nodes couldn't be read: nodes is forbidden" in output


@pytest.mark.parametrize("cluster", ["failing"], indirect=True)
def test_a_program_gets_the_same(cluster: Expected) -> None:
    answer = json.loads(run("why", "failing", "-o", "json").output)
    assert (answer["cause"], answer["phase"], answer["certainty"]) == ("FileNotFound", "Failed", "certain")
    assert answer["next"][0]["text"].startswith("check the path")
    assert json.loads(run("why", "-o", "json").output) == [answer]


@pytest.mark.parametrize("cluster", ["failing"], indirect=True)
def test_without_a_name_each_job_in_trouble_is_a_line(cluster: Expected) -> None:
    result = run("why")
    assert result.exit_code == 0
    assert result.output == "failing has failed: rank 0 doesn't find /data/train.bin.\n"


@pytest.mark.parametrize("cluster", ["all is well"], indirect=True)
def test_where_all_is_well_it_says_so(cluster: Expected) -> None:
    assert run("why").output == f"No jobs in trouble in namespace {NAMESPACE}.\n"
    assert run("why", "well").output.startswith("well is running normally (step 120 of 1000, 31 samples/s).\n")


@pytest.mark.parametrize("cluster", ["all is well"], indirect=True)
def test_a_job_that_is_not_there_is_one_sentence(cluster: Expected) -> None:
    result = run("why", "wel")
    assert result.exit_code == 1
    assert "did you mean well?" in result.output

"""With `-o`, jobs are printed as kubectl prints them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.unit.cli.dtj_command import JOBS, RUNNING, run
from tests.unit.client.fakes import FakeTransport, job

SHOWN = job(**RUNNING)


@pytest.fixture(autouse=True)
def jobs(transport: FakeTransport) -> None:
    one, two = (job(name, **RUNNING) for name in ("reviews", "b"))
    one["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    transport.answers = {f"GET {JOBS}/reviews": one, f"GET {JOBS}": {"items": [one, two]}}


@pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_one_job_is_the_object_and_all_are_a_list(output: str, load: Any) -> None:
    assert load(run("status", "reviews", "-o", output).output) == SHOWN
    listed = load(run("list", "-o", output).output)
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "List")
    assert [item["metadata"]["name"] for item in listed["items"]] == ["b", "reviews"]
    assert listed["items"][1] == SHOWN


def test_names_are_what_kubectl_takes() -> None:
    of = "distributedtrainingjob.trainmaster.dev/"
    assert run("list", "-o", "name").output == f"{of}b\n{of}reviews\n"


def test_wide_has_more_columns_behind_the_others() -> None:
    narrow, wide = run("list").output.splitlines(), run("list", "-o", "wide").output.splitlines()
    assert [after.startswith(before.rstrip()) for before, after in zip(narrow, wide, strict=True)] == [True] * 3
    assert wide[0].split()[8:] == ["SAMPLES/S", "ETA", "GOODPUT", "REASON"]
    assert wide[2].split()[8:] == ["5,123", "75s"]

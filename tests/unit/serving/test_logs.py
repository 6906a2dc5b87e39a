"""`serving.logs`: foreign text can't begin a line or an event of the log, nor control a terminal."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from tests.unit.controller.fake_cluster import FakeCluster
from trainmaster_operator.api.printable import UNSAFE
from trainmaster_operator.api.v1alpha1 import JobStatus
from trainmaster_operator.controller.writing.status import EventRecorder
from trainmaster_operator.reconciling.decision import JobEvent
from trainmaster_operator.reconciling.observed.snapshot import Job
from trainmaster_operator.serving.logs import JsonFormatter, TextFormatter, current_job

HOSTILE = "bad\n12:00:00.000 I team-b/other: succeeded\x1b]52;c;ZXZpbA==\x07\x9b2J\u202e\rgone"


def record() -> logging.LogRecord:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        return logging.LogRecord("x", logging.WARNING, "f.py", 1, "refused: %s", (HOSTILE,), sys.exc_info())


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_no_message_forges_a_line_or_commands_a_terminal(formatter: logging.Formatter) -> None:
    token = current_job.set(f"default/{HOSTILE}")
    try:
        text = formatter.format(record())
    finally:
        current_job.reset(token)
    assert UNSAFE.search(text) is None
    assert all(line.startswith("    ") for line in text.splitlines()[1:])


def test_json_keeps_the_message() -> None:
    assert json.loads(JsonFormatter().format(record()))["message"] == f"refused: {HOSTILE}"


async def test_the_message_of_an_event_is_one_harmless_line() -> None:
    cluster = FakeCluster()
    job = Job("team-a", "bert", "uid", 1, 0.0, None, JobStatus())
    await EventRecorder(cluster, lambda: 0.0).record(job, JobEvent("Warning", "Failed", HOSTILE))
    (event,) = cluster.objects.values()
    assert UNSAFE.search(event["message"]) is None
    assert "\n" not in event["message"]

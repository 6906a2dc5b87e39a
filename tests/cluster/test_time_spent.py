"""The real operator and agents account for a job's time: a rank that is killed once costs only what it must."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from urllib.request import urlopen

import pytest

from tests.cluster.operator_under_test import OperatorProcess, training_job
from tests.cluster.test_operator_jobs import Jobs
from trainmaster_local.testing.clusters import Cluster
from trainmaster_operator.api.times import to_seconds
from trainmaster_operator.api.v1alpha1 import TIME_CATEGORIES, JobStatus

pytestmark = pytest.mark.usefixtures("pods_run")

STEP_SECONDS, TOTAL, CHECKPOINT_EVERY, KILLED_AFTER = 0.1, 50, 20, 37
# Each rank keeps its own checkpoint in the pod, which survives a restart in place. Before one is killed, the ranks
# meet, as in a collective, and the operator receives both ranks' progress, which is sent once a second.
TRAIN = f"""
import json, os, pathlib, signal, socket, time
def meet():
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ["RANK"] == "0":
        socket.create_server(address, reuse_port=True).accept()
        return
    while True:
        try:
            return socket.create_connection(address)
        except OSError:
            time.sleep(0.05)
state = pathlib.Path(os.environ["TRAINMASTER_STATE_DIR"]) / "checkpoint"
progress = pathlib.Path(os.environ["TRAINMASTER_PROGRESS_FILE"])
start = int(state.read_text()) if state.exists() else 0
for step in range(start + 1, {TOTAL} + 1):
    time.sleep({STEP_SECONDS})
    line = {{"step": step, "totalSteps": {TOTAL}, "startStep": start, "stepSeconds": {STEP_SECONDS}}}
    beside = progress.with_name("." + progress.name)
    beside.write_text(json.dumps(line))
    beside.replace(progress)
    if step % {CHECKPOINT_EVERY} == 0:
        state.write_text(str(step))
    if step == {KILLED_AFTER} and os.environ["TRAINMASTER_ATTEMPT"] == "1":
        meet()
        time.sleep(2.5)
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_rank_costs_the_steps_since_the_checkpoint_and_a_restart(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    jobs = Jobs(cluster)
    cluster.apply(training_job("job", textwrap.dedent(TRAIN)))
    jobs.until_phase("Succeeded", seconds=90)
    status = JobStatus.model_validate(jobs.status())
    spent = status.time_spent
    assert spent is not None and spent.until == status.completion_time
    started, ended = to_seconds(status.start_time), to_seconds(status.completion_time)
    assert started is not None and ended is not None
    seconds = {name: getattr(spent, name) or 0.0 for name in TIME_CATEGORIES}
    assert sum(seconds.values()) == pytest.approx(ended - started, abs=0.0015)
    assert (status.attempt, status.restarts) == (2, 1)
    # Steps 21 to 37 were repeated.
    assert seconds["recompute"] >= (KILLED_AFTER - CHECKPOINT_EVERY - 2) * STEP_SECONDS
    assert seconds["productive"] >= 0.6 * TOTAL * STEP_SECONDS
    assert seconds["load"] + seconds["rendezvous"] > 0
    assert status.progress is not None and status.progress.goodput is not None
    assert status.progress.step == TOTAL
    assert status.progress.goodput == pytest.approx(seconds["productive"] / (ended - started), abs=0.002)
    assert 0.1 < status.progress.goodput < 0.9
    recovery = status.failures[0].recovery
    assert recovery is not None, "the way back was timed"
    assert recovery.repeated_steps == KILLED_AFTER - CHECKPOINT_EVERY
    parts = recovery.model_dump(exclude={"seconds", "repeated_steps"}, exclude_none=True)
    assert {"detected", "assigned", "stopped", "launched", "first_step"} <= parts.keys()
    assert recovery.seconds == pytest.approx(sum(parts.values()), abs=0.005)
    assert STEP_SECONDS <= recovery.seconds < ended - started

    shown = subprocess.run(
        [sys.executable, "-m", "trainmaster.cli.dtj", "status", "job", "--namespace", cluster.namespace],
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "COLUMNS": "160", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    print(shown)
    assert re.search(r"^time [█▒]{40}$", shown, re.MULTILINE), shown
    repeated = f"{KILLED_AFTER - CHECKPOINT_EVERY} steps repeated"
    assert f"recovered in {recovery.seconds:.2f} s, {repeated}: detected {recovery.detected:.2f}, assigned " in shown
    assert "recompute" in shown and f"goodput {status.progress.goodput:.0%}" in shown
    port = re.search(r"Metrics on port (\d+)", operator.text())
    assert port is not None
    with urlopen(f"http://127.0.0.1:{port[1]}/metrics", timeout=10) as answer:
        metrics = answer.read().decode()
    assert re.search(r'trainmaster_job_time_seconds_total\{category="recompute",job_name="job",', metrics)

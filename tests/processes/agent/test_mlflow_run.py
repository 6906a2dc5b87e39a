"""A job's run in MLflow, with a stand-in for its REST API: found again by every attempt, and never in the way."""

from __future__ import annotations

import http.server
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.signer import JOB_UID
from trainmaster_operator.agent.process import mlflow_run

from .agents import Job, until


class Server:
    """Experiments and runs as MLflow's REST API has them, and who has asked for what."""

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.runs: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str]] = []
        self.seconds = 0.0
        self.status = 200
        self.url = ""

    def environ(self, **environ: str) -> dict[str, str]:
        return {"MLFLOW_TRACKING_URI": self.url, "MLFLOW_EXPERIMENT_NAME": "bert", **environ}

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path.startswith("experiments/get-by-name?experiment_name=bert"):
            found = self.experiments.get("bert")
            return (200, {"experiment": {"experiment_id": found}}) if found else (404, {"error_code": "…"})
        if path == "experiments/create":
            self.experiments[body["name"]] = "7"
            return 200, {"experiment_id": "7"}
        if path == "runs/search":
            assert body["filter"] == f"tags.`trainmaster.job_uid` = '{JOB_UID}'"
            found = [run for run in self.runs if run["experiment_id"] in body["experiment_ids"]]
            return 200, {"runs": [{"info": {"run_id": run["id"]}} for run in found]}
        assert path == "runs/create" and body["tags"] == [{"key": "trainmaster.job_uid", "value": JOB_UID}]
        self.runs.append({"id": f"run{len(self.runs)}", **body})
        return 200, {"run": {"info": {"run_id": self.runs[-1]["id"]}}}


@contextmanager
def serving() -> Iterator[Server]:
    served = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.removeprefix("/api/2.0/mlflow/")
            served.asked.append((path, self.headers.get("Authorization", "")))
            time.sleep(served.seconds)
            status, answer = served.answer(path, json.loads(body or b"{}"))
            self.send_response(status if served.status == 200 else served.status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()


def test_a_run_is_made_once_and_found_from_then_on() -> None:
    with serving() as server:
        environ = server.environ(MLFLOW_TRACKING_USERNAME="ada", MLFLOW_TRACKING_PASSWORD="x")
        assert [mlflow_run.find_in_time(environ, "job", JOB_UID) for _ in range(2)] == [("run0", "")] * 2
        assert len(server.runs) == 1 and server.runs[0]["run_name"] == "job" and server.experiments == {"bert": "7"}
        assert {authorization for _, authorization in server.asked} == {"Basic YWRhOng="}
        by_id = {"MLFLOW_TRACKING_URI": server.url + "/", "MLFLOW_EXPERIMENT_ID": "7", "MLFLOW_TRACKING_TOKEN": "t"}
        assert mlflow_run.find_in_time(by_id, "job", JOB_UID) == ("run0", "")
        assert server.asked[-1] == ("runs/search", "Bearer t")


def test_it_is_only_done_where_the_pods_name_server_and_experiment_and_no_run() -> None:
    full = {"MLFLOW_TRACKING_URI": "https://mlflow", "MLFLOW_EXPERIMENT_NAME": "bert"}
    assert mlflow_run.is_wanted(full)
    for changed in ({"MLFLOW_TRACKING_URI": "databricks"}, {"MLFLOW_EXPERIMENT_NAME": ""}, {"MLFLOW_RUN_ID": "mine"}):
        assert not mlflow_run.is_wanted({**full, **changed})


@pytest.mark.parametrize(("seconds", "status"), [(30.0, 200), (0.0, 500), (0.0, 401)])
def test_a_server_that_is_of_no_use_costs_little_and_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, seconds: float, status: int
) -> None:
    monkeypatch.setattr(mlflow_run, "ANSWER_SECONDS", 0.3)
    with serving() as server:
        server.seconds, server.status = seconds, status
        began = time.monotonic()
        found, problem = mlflow_run.find_in_time(server.environ(), "job", JOB_UID)
        assert found == "" and problem and time.monotonic() - began < 5.0
        server.seconds = 0.0
    assert mlflow_run.find_in_time(server.environ(), "job", JOB_UID)[0] == "", "nor one that isn't there"


def test_rank_0_has_the_same_run_in_each_attempt(job: Job) -> None:
    say = "import os; print('run', os.environ['RANK'], os.environ.get('MLFLOW_RUN_ID'), flush=True)"
    with serving() as server:
        agents = [job.agent(worker).start(sys.executable, "-c", say, **server.environ()) for worker in range(2)]
        for attempt in (1, 2):
            assignment = job.assignment(attempt, range(2))
            for agent in agents:
                agent.annotate(assignment)
            for agent in agents:
                agent.until_state("Finished", attempt)
        assert until(lambda: agents[0].output().count("run 0 run0") == 2, what=agents[0].output())
        assert until(lambda: agents[1].output().count("run 1 None") == 2, what=agents[1].output())
        assert len(server.runs) == 1

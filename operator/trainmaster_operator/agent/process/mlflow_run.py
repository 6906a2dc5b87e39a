"""In MLflow a job's run carries the job's uid: rank 0's agent finds it, or makes it before the first attempt.

mlflow.start_run() goes on with the run that MLFLOW_RUN_ID names, and fails where it names none or one of another
experiment than the script's (mlflow 3.17, tracking/fluent.py). So this is only done where the pods name the server and
the experiment, and it never fails an attempt: without an answer the script makes a run of its own, as it would have.
REST API: mlflow.org/docs/latest/rest-api.html.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, Optional

from trainmaster_operator.wire.values import loads, mapping, mappings, text

TAG = "trainmaster.job_uid"
ANSWER_SECONDS = 2.0
"""For all requests together: an attempt waits for it, once in an agent's life."""
MOST_BYTES = 1_048_576
MAX_ID = 64


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Returns whether the pods name a server and an experiment of it, and no run."""
    uri = environ.get("MLFLOW_TRACKING_URI", "")
    named = environ.get("MLFLOW_EXPERIMENT_ID") or environ.get("MLFLOW_EXPERIMENT_NAME")
    return uri.startswith(("http://", "https://")) and bool(named) and "MLFLOW_RUN_ID" not in environ


def find_in_time(environ: Mapping[str, str], job: str, job_uid: str) -> tuple[str, str]:
    """Returns the id of the job's run, or an empty text and why there is none."""
    found: list[tuple[str, str]] = []

    def find() -> None:
        try:
            found.append((find_run(environ, job, job_uid), ""))
        except (OSError, ValueError) as error:
            found.append(("", str(error) or type(error).__name__))

    # A name may take long to resolve, for which there is no time limit.
    thread = threading.Thread(target=find, name="mlflow", daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    return found[0] if found else ("", f"no answer within {ANSWER_SECONDS:g} s")


def find_run(environ: Mapping[str, str], job: str, job_uid: str) -> str:
    """Returns the id of the job's run, which is made where there is none. Raises OSError, or ValueError."""
    server = _Server(environ)
    experiment = environ.get("MLFLOW_EXPERIMENT_ID") or _experiment(server, environ["MLFLOW_EXPERIMENT_NAME"])
    wanted = {"experiment_ids": [experiment], "filter": f"tags.`{TAG}` = '{job_uid}'", "max_results": 1}
    runs = list(mappings(server.ask("runs/search", wanted).get("runs")))
    if not runs:
        tags = [{"key": TAG, "value": job_uid}]
        made = {"experiment_id": experiment, "run_name": job, "start_time": int(time.time() * 1000), "tags": tags}
        runs = [mapping(server.ask("runs/create", made).get("run"))]
    run = text(mapping(runs[0].get("info")).get("run_id"), MAX_ID)
    if not run.isascii() or not run.isalnum():
        raise ValueError("the answer names no run")
    return run


def _experiment(server: _Server, name: str) -> str:
    query = urllib.parse.urlencode({"experiment_name": name})
    try:
        found = mapping(server.ask(f"experiments/get-by-name?{query}", None).get("experiment"))
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        # As mlflow.set_experiment() does.
        found = server.ask("experiments/create", {"name": name})
    return text(found.get("experiment_id"), MAX_ID)


class _Server:
    """Asks an MLflow server, as who the environment says."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._url = environ["MLFLOW_TRACKING_URI"].rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        user, token = environ.get("MLFLOW_TRACKING_USERNAME"), environ.get("MLFLOW_TRACKING_TOKEN")
        if user:
            pair = f"{user}:{environ.get('MLFLOW_TRACKING_PASSWORD', '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        elif token:
            self._headers["Authorization"] = f"Bearer {token}"

    def ask(self, path: str, body: Optional[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Returns the answer's object. Raises OSError (urllib's errors are ones), or ValueError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}/api/2.0/mlflow/{path}", data, self._headers)
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return mapping(loads(answer.read(MOST_BYTES)))

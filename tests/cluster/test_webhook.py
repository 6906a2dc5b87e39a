"""The webhook with a real operator: what becomes of a job, from apply to its end, arrives as CloudEvents in order."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.operator_under_test import install_crd, running_operator, training_job
from trainmaster_local.testing.clusters import Cluster

pytestmark = pytest.mark.usefixtures("pods_run")

SCRIPT = """
import os, sys, time
time.sleep(1)
sys.exit("a patient's name" if os.environ["TRAINMASTER_ATTEMPT"] == "1" else None)
"""


@contextmanager
def receiver() -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """A server that takes everything; yields its address, and what it has got: the token and the event."""
    got: list[tuple[str, dict[str, Any]]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.headers["Authorization"], json.loads(body)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hook", got
    finally:
        server.shutdown()
        server.server_close()


def test_a_jobs_life_arrives_as_cloud_events(cluster: Cluster, tmp_path: Path) -> None:
    install_crd(cluster)
    headers = tmp_path / "headers"
    headers.write_text("Authorization: Bearer mine\n")
    with (
        receiver() as (url, got),
        running_operator(cluster, tmp_path, f"--webhook-url={url}", f"--webhook-headers-file={headers}"),
    ):
        quiet = {"runPolicy": {"keepLogs": False}}
        cluster.apply(training_job("job", SCRIPT, workers=1, **quiet))

        def ended() -> bool:
            return any(event["data"]["phase"] == "Succeeded" for _, event in got)

        cluster.eventually(ended, 90.0, "the job's end arrives")
    assert {token for token, _ in got} == {"Bearer mine"}
    events = [event for _, event in got]
    assert {event["subject"] for event in events} == {f"{cluster.namespace}/job"}
    told = [(event["type"].split(".")[3], event["data"]["phase"], event["data"]["attempt"]) for event in events]
    assert told[0] == ("phase", "Pending", 1) and told[-1] == ("phase", "Succeeded", 2)
    # An attempt that ends at once needs no phase of its own in between, nor one that ends before its ranks are up.
    assert ("Starting", 2) in [(phase, attempt) for _, phase, attempt in told]
    (failure,) = [event for event in events if event["type"] == "dev.trainmaster.job.failure.v1"]
    assert (failure["data"]["failure"]["attempt"], failure["data"]["failure"]["reason"]) == (1, "Error")
    assert "patient" not in json.dumps(events), "keepLogs: false"
    assert len({event["id"] for event in events}) == len(events)

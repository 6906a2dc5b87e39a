"""A real operator sends a job's life to a history: the job, its ranks' figures, evidence, logs, and its deletion."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.operator_under_test import install_crd, running_operator, training_job
from trainmaster_local.testing.clusters import Cluster
from trainmaster_operator.api.records import (
    DeletedRecord,
    EvidenceRecord,
    JobRecord,
    LogRecord,
    Record,
    SampleRecord,
    SystemRecord,
    parse_record,
)

pytestmark = pytest.mark.usefixtures("pods_run")

SCRIPT = """
import json, os, sys, time
rank, attempt = int(os.environ["RANK"]), os.environ["TRAINMASTER_ATTEMPT"]
for step in range(30):
    with open(os.environ["TRAINMASTER_PROGRESS_FILE"], "w") as file:
        json.dump({"step": step, "loss": 1 / (step + 3), "stepSeconds": 0.1}, file)
    time.sleep(0.1)
    if attempt == "1" and rank == 1 and step == 20:
        sys.exit("lost my way")
print("done", rank)
"""


@contextmanager
def receiver() -> Iterator[tuple[str, list[tuple[str, Record]]]]:
    """Runs a history that accepts everything; yields its address, and what it has received: the token and the
    record.
    """
    got: list[tuple[str, Record]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            lines = self.rfile.read(int(self.headers["Content-Length"])).splitlines()
            got.extend((self.headers["Authorization"], parse_record(json.loads(line))) for line in lines)
            answer = json.dumps({"kind": "Recorded", "records": len(lines)}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", got
    finally:
        server.shutdown()
        server.server_close()


def test_a_jobs_life_is_recorded(cluster: Cluster, tmp_path: Path) -> None:
    install_crd(cluster)
    token = tmp_path / "token"
    token.write_text("mine\n")
    with receiver() as (url, got):
        options = (f"--history-url={url}", f"--history-token-file={token}", "--history-seconds=0.5")
        with running_operator(cluster, tmp_path, *options):
            cluster.apply(training_job("job", SCRIPT, workers=2))

            def phases() -> list[str]:
                return [record.job.get("status", {}).get("phase") for _, record in got if isinstance(record, JobRecord)]

            cluster.eventually(lambda: "Succeeded" in phases(), 120.0, "the job's end arrives")

            def ended() -> set[int]:
                logs = [record for _, record in got if isinstance(record, LogRecord)]
                return {record.worker for record in logs if "done" in record.log.lines[-1]}

            cluster.eventually(lambda: ended() == {0, 1}, 60.0, "the ends of its logs arrive")
            cluster.delete("dtj", "job")
            cluster.eventually(lambda: isinstance(got[-1][1], DeletedRecord), 30.0, "its deletion arrives")
        records = [record for _, record in got]
        assert {token for token, _ in got} == {"Bearer mine"}
        assert len({record.key for record in records}) == 1
        jobs = [record for record in records if isinstance(record, JobRecord)]
        assert phases()[0] == "Pending" and "managedFields" not in jobs[0].job["metadata"]
        assert [place.worker for place in jobs[-1].pods] == [0, 1] and all(place.node for place in jobs[-1].pods)
        assert [failure["attempt"] for failure in jobs[-1].job["status"]["failures"]] == [1]
        samples = [record for record in records if isinstance(record, SampleRecord)]
        assert {sample.attempt for sample in samples} == {1, 2}
        last = max((sample for sample in samples if sample.attempt == 2), key=lambda sample: sample.at)
        assert (last.ranks, last.workers) == ((0, 1), (0, 1)) and max(map(float, last.columns["step"] or [0])) > 20
        assert last.columns["step_seconds"] == [0.1, 0.1]
        systems = [record for record in records if isinstance(record, SystemRecord)]
        assert {worker for record in systems for worker in record.workers} == {0, 1}
        assert all(record.columns["memoryLimitBytes"] for record in systems)
        (evidence, *_) = [record for record in records if isinstance(record, EvidenceRecord)]
        assert evidence.attempt == 1 and "lost my way" in evidence.evidence
        logs = {record.worker: record.log.lines for record in records if isinstance(record, LogRecord)}
        assert {worker: lines[-1] for worker, lines in logs.items()} == {0: "[rank 0]: done 0", 1: "[rank 1]: done 1"}
    assert list(records[-1:]) == [record for record in records if isinstance(record, DeletedRecord)]

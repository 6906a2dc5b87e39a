"""The real command runs as a process, with an API server that answers reviews by the token."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from trainmaster.client.permission import REVIEWS
from trainmaster_operator.api.records import JobRecord, Record, SampleRecord, to_wire
from trainmaster_operator.api.v1alpha1 import JobIdentity

WRITER = "the-writers"
# A token's rights, as `verb resource[/subresource] namespace`.
RIGHTS: dict[str, str | tuple[str, ...]] = {
    "admin": "everything",
    "alice": ("get distributedtrainingjobs team", "list distributedtrainingjobs team"),
    "nobody": (),
}


@dataclass
class Reviews:
    """Plays the API server: it knows SelfSubjectAccessReviews and the tokens of RIGHTS."""

    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    # If this isn't 0, it answers with this status instead.
    broken: int = 0
    # It answers after this many seconds.
    seconds: float = 0.0
    # It answers nobody before this is set; `came` counts the requests.
    go: threading.Event = field(default_factory=threading.Event)
    came: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __post_init__(self) -> None:
        self.go.set()

    def answer(self, path: str, token: str, review: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        wanted = review["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (wanted["resource"], wanted.get("subresource"))))
        access = " ".join((wanted["verb"], resource, wanted.get("namespace", "*")))
        self.asked.append((token, access))
        self.came.release()
        self.go.wait(10)
        time.sleep(self.seconds)
        if self.broken:
            return self.broken, {"kind": "Status", "code": self.broken, "message": "etcd: no leader"}
        if path != REVIEWS or token not in RIGHTS:
            return 401, {"kind": "Status", "code": 401, "reason": "Unauthorized", "message": "Unauthorized"}
        allowed = RIGHTS[token] == "everything" or access in RIGHTS[token]
        return 201, {**review, "status": {"allowed": allowed}}


@contextmanager
def reviews() -> Iterator[Reviews]:
    """Serves reviews."""
    found = Reviews()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = found.answer(
                self.path, self.headers.get("Authorization", "").removeprefix("Bearer "), body
            )
            raw = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class History:
    """Runs the process of the history."""

    process: subprocess.Popen[str]
    port: int
    lines: list[str]

    def get(self, path: str, token: str = "admin", **headers: str) -> tuple[int, Any]:
        """Returns an answer's status and JSON."""
        given = {"Authorization": f"Bearer {token}"} if token else {}
        return self._send(urllib.request.Request(self._url(path), headers={**given, **headers}))

    def post(self, records: Iterable[Record] | bytes, token: str = WRITER) -> tuple[int, Any]:
        """Sends records."""
        body = records if isinstance(records, bytes) else b"".join(map(line, records))
        given = {"Authorization": f"Bearer {token}"}
        return self._send(urllib.request.Request(self._url("/v1/records"), body, given, method="POST"))

    def text(self, path: str) -> str:
        """Returns a probe's or the metrics' text."""
        with urllib.request.urlopen(self._url(path), timeout=10) as response:
            return str(response.read().decode())

    def kill(self) -> None:
        """Kills it as a lost node does."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Stops it as a kubelet does, and returns how it ended."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=10)

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def _send(self, request: urllib.request.Request) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


def line(record: Record) -> bytes:
    """Returns a record as a line."""
    return json.dumps(to_wire(record)).encode() + b"\n"


@contextmanager
def history(folder: Path, server: str, *options: str) -> Iterator[History]:
    """Starts the command, and waits until it listens."""
    (folder / "token").write_text(f"{WRITER}\n")
    kubeconfig = folder / "kubeconfig"
    cluster = {"name": "here", "cluster": {"server": server}}
    context = {"name": "here", "context": {"cluster": "here", "user": "here"}}
    user = {"name": "here", "user": {"token": "the-kubeconfigs-own"}}
    parts = {"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "here"}
    kubeconfig.write_text(yaml.safe_dump(parts))
    program = "from trainmaster.cli.commands.history_server import app; app()"
    command = [sys.executable, "-c", program, "serve", "--file", str(folder / "history.sqlite"), "--port", "0"]
    command += ["--address", "127.0.0.1", "--writer-token-file", str(folder / "token")]
    command += ["--kubeconfig", str(kubeconfig), "--log-format", "json", *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    lines: list[str] = []
    ready = threading.Event()
    port = [0]

    def read() -> None:
        assert process.stderr is not None
        for text in process.stderr:
            lines.append(text)
            if " is served on port " in text:
                port[0] = int(json.loads(text)["message"].rsplit(" ", 1)[1].rstrip("."))
                ready.set()
        ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert ready.wait(20) and port[0], "".join(lines)
        yield History(process, port[0], lines)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join()
        assert process.stderr is not None
        process.stderr.close()


def key(name: str = "mine", uid: str = "uid-1", namespace: str = "team") -> JobIdentity:
    """Returns a job's identity."""
    return JobIdentity(namespace, name, uid)


def job(at: float, of: JobIdentity, **status: Any) -> JobRecord:
    """Returns a job's record."""
    metadata = {"namespace": of.namespace, "name": of.name, "uid": of.uid, "creationTimestamp": "2026-11-26T03:00:00Z"}
    return JobRecord(at, {"kind": "DistributedTrainingJob", "metadata": metadata, "status": status})


def sample(at: float, of: JobIdentity, step: int, attempt: int = 1, **columns: list[float | None]) -> SampleRecord:
    """Returns a sample of two ranks."""
    return SampleRecord(at, of, attempt, (0, 1), (0, 1), {"step": [step, step], **columns})

"""The lead's table alone, with more members than a test could start."""

from __future__ import annotations

import json
import socket
from typing import Any

from trainmaster.agent.assignment import from_wire
from trainmaster.agent.connection import MAX_LINE_BYTES, Connection
from trainmaster.agent.lead import Lead
from trainmaster.agent.loop import Loop
from trainmaster.agent.settings import read_settings

from .test_parsers import GOOD


def test_a_large_jobs_hello_keeps_to_lines_that_a_reader_takes() -> None:
    loop = Loop()
    uid = "0123456789abcdef-0123456789abcdef-0123"
    settings = read_settings({"TRAINMASTER_WORKER": "0", "TRAINMASTER_POD_UID": uid})
    lead = Lead(loop, settings, lambda *_: None, lambda _: None, lambda: None, lambda *_: None)
    workers = list(range(400))
    names = [f"job-{worker}.job.ns.svc" for worker in workers]
    lead.assignment_changed(from_wire({**GOOD, "workers": workers, "hosts": names, "uids": None}))
    sockets = []
    for worker in workers[1:]:
        ours, theirs = tcp_pair()
        sockets.append(theirs)
        hello = json.dumps({"type": "hello", "worker": worker, "uid": uid, "seen": 3}) + "\n"
        lead.join(Connection(loop, ours, lambda _: None, lambda: None), hello.encode())
    ours, theirs = tcp_pair()
    lead.open_stream(Connection(loop, ours, lambda _: None, lambda: None))
    lines: list[dict[str, Any]] = []
    rest = b""
    while len(lines) < 1 + len(workers) - 256:
        loop.run_once(0.01)
        rest += theirs.recv(1_000_000)
        *complete, rest = rest.split(b"\n")
        assert all(len(line) < MAX_LINE_BYTES for line in complete)
        lines += [json.loads(line) for line in complete if line.startswith(b"{")]
    told = [member["worker"] for member in lines[0]["members"]] + [line["worker"] for line in lines[1:]]
    assert sorted(told) == workers
    for sock in (*sockets, theirs):
        sock.close()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), timeout=5)
        return listener.accept()[0], client

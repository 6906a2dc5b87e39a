"""This server receives reports of Hugging Face's Trainer by HTTP on the loopback address, like Kubeflow's controller.

A rank waits for the answer, so the loop answers at once and refuses excessive requests. With the node's own network
(`interconnect.hostNetwork`), other programs can reach the loopback address too. So each attempt has a token, in a file
that only the job's own user can read.

transformers 5 (`integrations/integration_utils.py`, `KubeflowCallback`) sends rank 0's progress if
KUBEFLOW_TRAINER_SERVER_URL is set. It reports at the beginning, at the end, and after a step if the last report is at
least 5 s old. The protocol is Kubeflow Trainer's (kubeflow/trainer, KEP-2779). A report contains a percentage, the
remaining seconds, and metrics by name with texts as values. Other programs may use the protocol too, so the server
relies only on the form of a report.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Optional

from trainmaster_operator.agent.connection import PeerConnection
from trainmaster_operator.agent.http import BadRequest, Head, Request, response
from trainmaster_operator.agent.loop import READ, Loop
from trainmaster_operator.agent.process.launcher import ADDRESS, PATH
from trainmaster_operator.wire.limits import MAX_LINE_BYTES
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.values import is_number, loads, mapping, mappings, number

MAX_CONNECTIONS = 8
"""The most connections; a further one replaces the oldest. A Trainer opens a connection for each report."""
REQUEST_SECONDS = 5.0
BURST, PER_SECOND = 20, 4.0
"""The limits of the reports that are read. A Trainer sends one every 5 s. Reports over the limits get the answer 429,
which a Trainer ignores."""
MAX_METRICS = 64
MAX_VALUE_CHARACTERS = 64
_WHOLE = {"current_step": "step", "total_steps": "totalSteps"}
_NUMBERS = {
    "current_epoch": "epoch",
    "epoch": "epoch",
    "loss": "loss",
    "grad_norm": "gradNorm",
    "learning_rate": "learningRate",
}


class TrainerServer:
    """TrainerServer listens until the agent ends. `receive` takes the bodies of the present attempt's reports."""

    def __init__(self, loop: Loop, receive: Callable[[Any], None]) -> None:
        self._loop, self._receive = loop, receive
        self._connections: list[PeerConnection] = []
        self._token = ""
        self._room, self._room_at = float(BURST), 0.0
        self._socket: Optional[socket.socket] = None

    def serve(self, token_file: str) -> int:
        """Begin an attempt with a new token; returns the port for its reports, 0 if the server can't listen."""
        self._token = os.urandom(16).hex()
        try:
            os.makedirs(os.path.dirname(token_file), exist_ok=True)
            fd = os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(fd, "w", encoding="ascii") as file:
                file.write(self._token)
            if self._socket is None:
                self._socket = socket.create_server((ADDRESS, 0), backlog=MAX_CONNECTIONS)
                self._socket.setblocking(False)
                self._loop.watch(self._socket.fileno(), READ, self._accept)
        except OSError:
            # If the token can't be written, the launch will fail for the same reason and report it.
            return 0
        return int(self._socket.getsockname()[1])

    def _accept(self, _events: int) -> None:
        assert self._socket is not None
        try:
            sock, _ = self._socket.accept()
        except OSError:
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            self._close(self._connections[0])
        connection, request = PeerConnection(self._loop, sock), Request()
        self._connections.append(connection)
        connection.on_data = lambda: self._read(connection, request)
        connection.on_end = lambda: self._close(connection)
        self._loop.call_later(REQUEST_SECONDS, lambda: self._close(connection))

    def _read(self, connection: PeerConnection, request: Request) -> None:
        data = connection.read()
        if data is None:
            return
        request.feed(data)
        try:
            answer = self._answer(request)
        except BadRequest as error:
            answer = response(error.status, f"{error}\n")
        if answer:
            connection.send(answer)
            connection.finish(request.missing)

    def _answer(self, request: Request) -> bytes:
        """Returns the answer to a connection's request; empty while the request is incomplete."""
        head = request.head()
        if head is None:
            return b""
        if head.path != PATH or head.method != "POST":
            return response(404, f"this server answers only POST {PATH}\n")
        if not self._is_authorized(head):
            return response(401, "the token is missing, or another attempt's\n")
        if head.length > MAX_LINE_BYTES:
            return response(413, f"the report is longer than {MAX_LINE_BYTES} bytes\n")
        body = request.body()
        if body is None:
            return b""
        if not self._has_room():
            return response(429, "too many reports\n")
        try:
            report = loads(body)
        except ValueError:
            return response(400, "the body is not JSON\n")
        self._receive(report)
        return response(200, "{}", "application/json")

    def _is_authorized(self, head: Head) -> bool:
        # Imported here, because it costs 3 ms of an agent's start and the first report comes later.
        import hmac

        given = head.headers.get("authorization", "").encode("latin-1")
        return bool(self._token) and hmac.compare_digest(f"Bearer {self._token}".encode(), given)

    def _has_room(self) -> bool:
        now = time.monotonic()
        self._room = min(BURST, self._room + (now - self._room_at) * PER_SECOND)
        self._room_at, has_room = now, self._room >= 1
        self._room -= has_room
        return has_room

    def _close(self, connection: PeerConnection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            connection.close()


class TrainerReports:
    """TrainerReports combines the reports of one attempt's Trainer."""

    def __init__(self) -> None:
        self.progress: Optional[RankProgress] = None
        """The progress that the reports show; None until a report has arrived."""
        self.is_over = False
        """Whether the training has ended. The script's later work isn't watched, because its duration is unknown."""
        self._percent: Optional[float] = None

    def receive(self, body: object) -> bool:
        """Read a report; returns whether it shows progress: a new step, or a new percentage if it contains no step."""
        status = mapping(body).get("trainerStatus")
        if not isinstance(status, Mapping):
            return False
        before, percent = self.progress, number(status.get("progressPercentage"))
        found, own = _metrics(status)
        begins = percent == 0 and "step" not in found
        fields = {**({} if before is None or begins else before.to_wire()), **found}
        # A report contains only the newest log's metrics: an evaluation's, or a step's.
        fields["metrics"] = {**mapping(fields.get("metrics")), **own}
        self.is_over = percent is not None and percent >= 100
        fields["section"] = "finish" if self.is_over else "train"
        remaining = status.get("estimatedRemainingSeconds")
        if is_number(remaining):
            fields["etaSeconds"] = remaining
        self.progress = RankProgress.salvage(fields)
        step = None if self.progress is None else self.progress.step
        advanced = before is None or step != before.step or (step is None and percent != self._percent)
        self._percent = percent
        return advanced


def _metrics(status: Mapping[str, object]) -> tuple[dict[str, object], dict[str, float]]:
    """Returns the metrics that are fields of the progress, by field, and the Trainer's other metrics."""
    found: dict[str, object] = {}
    own: dict[str, float] = {}
    for metric in mappings(status.get("metrics"))[:MAX_METRICS]:
        name, value = metric.get("name"), _value(metric.get("value"))
        if not isinstance(name, str) or value is None:
            continue
        if name in _WHOLE and value >= 0 and value == int(value):
            found[_WHOLE[name]] = int(value)
        elif name in _NUMBERS:
            found[_NUMBERS[name]] = value
        elif name not in _WHOLE:
            own[name] = value
    return found, own


def _value(text: object) -> Optional[float]:
    if not isinstance(text, str) or len(text) > MAX_VALUE_CHARACTERS:
        return number(text)
    try:
        return number(float(text))
    except ValueError:
        return None

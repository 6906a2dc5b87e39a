"""Real agents run as processes on this machine, each on its own address; `Stream` is the operator that talks to
them.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.signer import JOB_UID, TOKEN, environment, signed
from trainmaster_operator.agent.process.children import process_state
from trainmaster_operator.wire.assignment import PORTS, port_at

AGENT = [sys.executable, "-m", "trainmaster_operator.agent"]
T = TypeVar("T")


def until(condition: Callable[[], T | None], seconds: float = 20.0, what: str = "") -> T:
    """Wait until a condition returns something true; the limit is generous because the machine is shared."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what or condition}")
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Returns whether a process has ended; its new parent may never reap it."""
    return process_state(pid) in "XZ"


def free_port(address: str) -> int:
    with socket.socket() as sock:
        sock.bind((address, 0))
        return int(sock.getsockname()[1])


def master_port(address: str) -> int:
    """Returns a free port among the attempt's own."""
    for port in map(port_at, random.sample(range(PORTS), 100)):
        with socket.socket() as sock:
            try:
                sock.bind((address, port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no free port at {address}")


class Agent:
    """Plays one worker's container: its files outlive the agent's process, as the pod's emptyDir does."""

    def __init__(self, job: Job, worker: int, environ: dict[str, str]) -> None:
        self.job = job
        self.worker = worker
        self.uid = f"uid-{worker}"
        self.address = job.address(worker)
        self.folder = job.folder / f"worker-{worker}"
        self.state_dir = self.folder / "state"
        self.state_dir.mkdir(parents=True)
        self.termination_log = self.folder / "termination-log"
        self.podinfo = self.folder / "podinfo"
        self.podinfo.mkdir()
        self.environ = environ
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *command: str, agent: Sequence[str] = AGENT, stdout: int | None = None, **environ: str) -> Agent:
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "NPROC_PER_NODE": "1",
            "RANK": str(self.worker),
            **environment(),
            "TRAINMASTER_WORKER": str(self.worker),
            "TRAINMASTER_POD_UID": self.uid,
            "TRAINMASTER_POD_IP": self.address,
            "TRAINMASTER_NODE_NAME": "node-a",
            "TRAINMASTER_AGENT_PORT": str(self.job.agent_port),
            "TRAINMASTER_ASSIGNMENT_FILE": str(self.podinfo / "assignment"),
            "TRAINMASTER_STATE_DIR": str(self.state_dir),
            "TRAINMASTER_TERMINATION_LOG": str(self.termination_log),
            "TRAINMASTER_HOSTS_FILE": str(self.job.hosts_file),
            "TRAINMASTER_LAUNCHER": "exec",
            "TRAINMASTER_GRACE_SECONDS": "10",
            **self.environ,
            **environ,
        }
        with (self.folder / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [*agent, "run", "--", *command],
                env=variables,
                stdout=output if stdout is None else stdout,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )
        self.job.processes.append(self.process)
        return self

    def annotate(self, assignment: dict[str, Any]) -> None:
        """Change the downward-API file as the kubelet does: with a new folder, and a link that is swapped.

        Kubernetes: pkg/volume/util/atomic_writer.go.
        """
        version = self.podinfo / f"..{time.monotonic_ns()}"
        version.mkdir()
        (version / "assignment").write_text(json.dumps(assignment))
        link = self.podinfo / "..data_tmp"
        link.symlink_to(version.name)
        link.rename(self.podinfo / "..data")
        name = self.podinfo / "assignment"
        if not name.is_symlink():
            name.symlink_to("..data/assignment")

    def request(
        self, method: str, path: str, body: Any = None, token: str | None = TOKEN, timeout: float = 10.0
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self.address, self.job.agent_port, timeout=timeout)
        headers = {} if token is None else {"Trainmaster-Token": token}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def until_healthy(self) -> None:
        def healthy() -> bool:
            try:
                return self.request("GET", "/healthz", token=None) == (200, "ok")
            except OSError:
                return False

        until(healthy, what=f"worker {self.worker} answers; it printed {self.output()}")

    def state(self) -> dict[str, Any]:
        """Returns the answer of /v1/state; empty if the agent doesn't answer."""
        try:
            status, text = self.request("GET", "/v1/state")
        except OSError:
            return {}
        return dict(json.loads(text)) if status == 200 else {}

    def report(self) -> dict[str, Any]:
        return self.state().get("report") or {}

    def until_state(self, state: str, attempt: int = 1, seconds: float = 20.0) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            report = self.report()
            return report if (report.get("state"), report.get("attempt")) == (state, attempt) else None

        return until(there, seconds, f"worker {self.worker} {state} in attempt {attempt}; is {self.report()}")

    def exit_code(self, seconds: float = 20.0) -> int:
        assert self.process is not None
        return self.process.wait(seconds)

    def termination(self) -> dict[str, Any]:
        return dict(json.loads(self.termination_log.read_text()))

    def saved_report(self) -> dict[str, Any]:
        return dict(json.loads((self.state_dir / "saved-report.json").read_text()))

    def output(self) -> str:
        return (self.folder / "output").read_text()

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def lines(self, name: str) -> list[str]:
        """Returns the lines that ranks have written to a file of the test."""
        path = self.job.folder / name
        return path.read_text().splitlines() if path.exists() else []


class Stream:
    """Watches a leader as an operator does."""

    def __init__(self, agent: Agent) -> None:
        until(agent.state, what=f"worker {agent.worker} takes requests; it printed {agent.output()}")
        self._connection = http.client.HTTPConnection(agent.address, agent.job.agent_port, timeout=20)
        self._connection.request("GET", "/v1/stream", headers={"Trainmaster-Token": TOKEN})
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()
        self.seen: list[dict[str, Any]] = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            line = self._answer.readline()
            if not line:
                return
            self.seen.append(json.loads(line))
            yield self.seen[-1]

    def until(self, matches: Callable[[dict[str, Any]], bool], seconds: float = 30.0) -> dict[str, Any]:
        """Returns the next line that matches. If it never comes, the leader's pings end the wait."""
        deadline = time.monotonic() + seconds
        for line in self:
            if matches(line):
                return line
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds:g} s; the stream said {self.seen}")
        raise AssertionError(f"the stream ended; it said {self.seen}")

    def until_report(self, state: str, attempt: int = 1, worker: int | None = None) -> dict[str, Any]:
        """Returns the next report of this state, with its `seq`."""

        def matches(line: dict[str, Any]) -> bool:
            report = line.get("report") or {}
            return (report.get("state"), report.get("attempt")) == (state, attempt) and (
                worker is None or report.get("worker") == worker
            )

        return self.until(matches)

    def until_reports(self, state: str, workers: Sequence[int], attempt: int = 1) -> dict[int, dict[str, Any]]:
        """Returns the workers' next reports of this state by worker, in whatever order they arrive."""
        found: dict[int, dict[str, Any]] = {}
        while set(found) != set(workers):
            line = self.until_report(state, attempt)
            found[line["report"]["worker"]] = line
        return found

    def close(self) -> None:
        self._connection.close()
        self._answer.close()


class Job:
    """Holds the agents of one job, each with an address in 127.0.0.0/8 and a stable name in a hosts file."""

    def __init__(self, folder: Path, network: str) -> None:
        self.folder = folder
        self._network = network
        self.agent_port = free_port(self.address(0))
        self.hosts_file = folder / "hosts"
        self.hosts_file.write_text("".join(f"{self.address(w)} {self.host(w)}\n" for w in range(8)))
        self.processes: list[subprocess.Popen[bytes]] = []
        self.agents: dict[int, Agent] = {}

    def address(self, worker: int) -> str:
        return f"{self._network}.{worker + 1}"

    def host(self, worker: int) -> str:
        return f"job-{worker}.job.ns.svc"

    def agent(self, worker: int, **environ: str) -> Agent:
        self.agents[worker] = Agent(self, worker, environ)
        return self.agents[worker]

    def assignment(self, attempt: int, workers: Sequence[int] = (0,), **changes: Any) -> dict[str, Any]:
        """Returns an attempt as the operator signs it."""
        assignment = {
            "job": JOB_UID,
            "attempt": attempt,
            "workers": list(workers),
            "uids": None if attempt == 1 else [f"uid-{worker}" for worker in workers],
            "hosts": [self.host(worker) for worker in workers],
            "master": self.host(workers[0]),
            "port": master_port(self.address(workers[0])),
            "state": "Run",
            "graceSeconds": 0.4,
            **changes,
        }
        return signed(assignment)

    def annotate(self, assignment: dict[str, Any]) -> None:
        for agent in self.agents.values():
            agent.annotate(assignment)

    def end(self) -> None:
        """Kill what is left: the agents by pid, their ranks by the state folder in their environment."""
        from trainmaster_operator.agent.process import children

        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait(10)
        for agent in self.agents.values():
            children.send(children.leftovers(str(agent.state_dir)), signal.SIGKILL)

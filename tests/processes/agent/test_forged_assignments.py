"""Real agents accept only assignments that the operator has signed, whichever way they come."""

from __future__ import annotations

import json
import os
import socket
import subprocess

import pytest

from tests.processes.agent.agents import AGENT, Agent, Job, until
from tests.processes.agent.test_group import RANK, joined, rank_pid, start_group
from tests.signer import FOREIGN, GOOD, KEYS, TOKEN, environment, signed

EVIL = "10.9.8.7"


@pytest.mark.parametrize("keys", [None, "", "AAAA", "not base64!", f"{KEYS.public_keys},"])
def test_an_agent_without_keys_refuses_to_run_and_says_why(job: Job, keys: str | None) -> None:
    agent = job.agent(0)
    agent.annotate({**GOOD, "uids": None})
    agent.start("sh", "-c", "touch $0/ran", str(job.folder), TRAINMASTER_PUBLIC_KEYS=keys or "")
    assert agent.exit_code() == 64
    assert "TRAINMASTER_PUBLIC_KEYS" in agent.termination_log.read_text()
    assert not (job.folder / "ran").exists()


def attempt_of(agent: Agent) -> int:
    return int((agent.state().get("assignment") or {}).get("attempt", 0))


def test_a_push_with_the_token_moves_nobody_unless_it_is_signed(job: Job) -> None:
    """This was the attack of a security review: the token was read from an annotation, and an attempt with a foreign
    master pushed.
    """
    agents = start_group(job, 2)
    joined(agents[0], 2)
    pids = [rank_pid(job, rank, 1) for rank in range(2)]
    genuine = job.assignment(2, [0, 1])
    foreign = {**genuine, "hosts": [EVIL, job.host(1)], "master": EVIL}
    for forged in ({**foreign}, signed(foreign, FOREIGN), {**genuine, "attempt": 2**53}, {**genuine, "attempt": 999}):
        status, text = agents[0].request("POST", "/v1/assignment", forged)
        assert (status, text.startswith("assignment.")) == (400, True)
    assert [attempt_of(agent) for agent in agents] == [1, 1]
    assert [rank_pid(job, rank, 1) for rank in range(2)] == pids
    assert agents[0].request("POST", "/v1/assignment", genuine)[0] == 204
    rank_pid(job, 1, 2)


def test_a_forged_annotation_moves_nobody(job: Job) -> None:
    agent = start_group(job, 1)[0]
    agent.until_state("Running")
    agent.annotate(signed(job.assignment(2), FOREIGN))
    until(lambda: "none was made with a key that this pod knows" in agent.output())
    assert attempt_of(agent) == 1
    agent.annotate(signed({**job.assignment(2), "job": "another-uid"}))
    until(lambda: "is not this job's uid" in agent.output())
    agent.annotate(job.assignment(2))
    agent.until_state("Running", 2)
    agent.annotate(job.assignment(1))
    assert agent.request("POST", "/v1/assignment", job.assignment(1))[0] == 409, "a genuine one of before is just old"


def test_a_leader_that_is_none_moves_no_follower(job: Job) -> None:
    """A server that answers at the leader's name and lets followers join can't make them train."""
    with socket.create_server((job.address(0), job.agent_port)) as leader:
        leader.settimeout(20)
        follower = job.agent(1)
        follower.annotate(job.assignment(1, [0, 1], state="Hold"))
        follower.start("sh", "-c", RANK, "sh", str(job.folder))
        peer, _ = leader.accept()
        with peer:
            peer.settimeout(20)
            peer.recv(4_096)
            forged = signed(job.assignment(2, [0, 1]), FOREIGN)
            line = {"type": "assignment", "assignment": forged}
            peer.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + json.dumps(line).encode() + b"\n")
            until(lambda: "none was made with a key that this pod knows" in follower.output())
            assert attempt_of(follower) == 1


def test_an_agent_of_another_job_joins_no_leader(job: Job) -> None:
    """Even with the namespace's Secret, which its jobs share, it can't join: each job has its own token."""
    agent = start_group(job, 1)[0]
    agent.until_state("Running")
    other = KEYS.job_token("ns", "another-uid")
    for path in ("/v1/stream", "/v1/join", "/v1/state"):
        assert agent.request("GET", path, token=other)[0] == 401
    with socket.create_connection((agent.address, job.agent_port), timeout=10) as connection:
        connection.sendall(
            f"GET /v1/join HTTP/1.1\r\nTrainmaster-Token: {TOKEN}\r\nUpgrade: trainmaster/1\r\n\r\n".encode()
            + b'{"type":"hello","job":"another-uid","worker":5,"uid":"five","seen":1}\n'
        )
        answer = b""
        while more := connection.recv(4_096):
            answer += more
    assert b"101" in answer and b"assignment" not in answer, "closed without an answer"
    assert [worker["worker"] for worker in agent.state()["workers"]] == [0]


def test_without_the_namespaces_secret_nobody_gets_in_and_outcomes_travel_by_exit(job: Job) -> None:
    agents = start_group_without_secret(job)
    for token in (None, "", TOKEN, KEYS.agents_secret("ns").value):
        assert agents[0].request("GET", "/v1/state", token=token)[0] == 401
    assert agents[0].request("GET", "/healthz", token=None) == (200, "ok")
    os.kill(rank_pid(job, 1, 1), 9)
    assert agents[1].exit_code() == 137
    agents[1].start("sh", "-c", RANK, "sh", str(job.folder), TRAINMASTER_AGENTS_SECRET="")
    job.annotate(job.assignment(2, [0, 1]))
    rank_pid(job, 0, 2)
    rank_pid(job, 1, 2)


def start_group_without_secret(job: Job) -> list[Agent]:
    agents = [job.agent(index, TRAINMASTER_AGENTS_SECRET="") for index in range(2)]
    job.annotate(job.assignment(1, [0, 1]))
    for agent in agents:
        agent.start("sh", "-c", RANK, "sh", str(job.folder))
    for agent in agents:
        agent.until_healthy()
    return agents


def test_ranks_never_see_the_namespaces_secret(job: Job) -> None:
    agent = job.agent(0, TRAINMASTER_SETUP='env > "$SEEN.setup"', SEEN=str(job.folder / "seen"))
    agent.annotate(job.assignment(1))
    agent.start("sh", "-c", 'env > "$SEEN"; sleep 60')
    until((job.folder / "seen").exists)
    until(lambda: "TRAINMASTER_ATTEMPT" in (job.folder / "seen").read_text())
    secret = KEYS.agents_secret("ns").value
    for name in ("seen", "seen.setup"):
        seen = (job.folder / name).read_text()
        assert secret not in seen and TOKEN not in seen and "TRAINMASTER_AGENTS_SECRET" not in seen
    assert secret not in json.dumps(agent.state()) and TOKEN not in json.dumps(agent.state())
    command = [*AGENT, "state"]
    environ = {"PATH": os.environ["PATH"], **environment(), "TRAINMASTER_WORKER": "0"}
    printed = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=20)
    assert secret not in printed.stdout + printed.stderr

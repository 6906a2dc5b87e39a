"""Who can read pods, or stands in the network, writes assignments: none is taken that the operator hasn't signed."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
from typing import Any

import pytest

from tests.signer import JOB_UID, KEYS, STRANGER, TOKEN, environment, signed
from trainmaster.agent import ed25519
from trainmaster.agent.authority import Authority
from trainmaster.agent.settings import Settings, read_settings
from trainmaster.api.signing import SigningKeys
from trainmaster.wire.errors import ProtocolError
from trainmaster.wire.ports import PORTS, port_at
from trainmaster.wire.signing import job_token, key_id

from .agents import AGENT, Agent, Job, until
from .test_group import RANK, joined, rank_pid, start_group
from .test_parsers import GOOD

EVIL = "10.9.8.7"


def worker(keys: SigningKeys = KEYS, **environ: str) -> Settings:
    return read_settings({**environment(keys), "TRAINMASTER_WORKER": "1", **environ})


def read(data: Any, settings: Settings | None = None) -> int:
    return Authority(settings or worker()).read(data).attempt


FORGED: dict[str, dict[str, Any]] = {
    "unsigned": GOOD,
    "signed by somebody else": signed(GOOD, STRANGER),
    "changed after it was signed": {**signed(GOOD), "attempt": 4},
    "with a field more": {**signed(GOOD), "extra": 1},
    "with the signature of another one": {**GOOD, "signatures": signed({**GOOD, "attempt": 9})["signatures"]},
    "with a signature that is none": {**GOOD, "signatures": {key_id(worker().public_keys[0]): "AAAA"}},
    "with a signature that is no base64": {**GOOD, "signatures": {key_id(worker().public_keys[0]): "\x00é"}},
    "with signatures that are none": {**GOOD, "signatures": [1]},
}


@pytest.mark.parametrize("how", FORGED)
def test_a_forged_assignment_is_refused(how: str) -> None:
    assert read(signed(GOOD)) == 3
    with pytest.raises(ProtocolError, match=r"assignment\.signatures: "):
        read(FORGED[how])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"job": "another-uid"}, "assignment.job: 'another-uid' is not this job's uid"),
        ({"master": EVIL}, "assignment.master: '10.9.8.7' is not the first of the hosts"),
        ({"hosts": [EVIL, "job-1.job.ns.svc"], "master": EVIL}, "'10.9.8.7' is not worker 0's <pod>.job.ns.svc"),
        ({"hosts": ["job-0.job.ns.svc", "job-1.job.other.svc"]}, "'job-1.job.other.svc' is not worker 1's"),
        ({"hosts": ["job-0.job.ns.svc", "job-2.job.ns.svc"]}, "'job-2.job.ns.svc' is not worker 1's"),
        ({"hosts": ["job-0.job.ns.svc", "job-1.job.ns.svc.evil.example"]}, "is not worker 1's"),
        ({"hosts": ["job-0.job.ns.svc", "xjob-1.job.ns.svc"]}, "is not worker 1's"),
        ({"port": 22}, "assignment.port: 22 is not a whole number from 20000 to 28979"),
        ({"attempt": 2**53}, "assignment.attempt: 9007199254740992 is not a whole number from 0 to 1000000"),
    ],
)
def test_even_what_is_signed_must_be_of_this_job_and_plausible(change: dict[str, Any], sentence: str) -> None:
    """The key of a test that leaked, or a fault of the operator's own: it can't send ranks to a stranger."""
    with pytest.raises(ProtocolError) as refused:
        read(signed({**GOOD, **change}))
    assert sentence in str(refused.value)


def test_attempts_far_ahead_of_what_was_seen_are_refused() -> None:
    mine = Authority(worker())
    mine.read(signed({**GOOD, "attempt": 7}))
    with pytest.raises(ProtocolError, match=r"900000 is more than 100000 beyond the highest seen \(7\)"):
        mine.read(signed({**GOOD, "attempt": 900_000}))
    assert mine.read(signed({**GOOD, "attempt": 5_000})).attempt == 5_000, "of an agent that was cut off for a while"


def test_the_hosts_of_worker_groups_are_the_jobs() -> None:
    hosts = ["job-gpu-big-0.job.ns.svc", "job-cpu-1.job.ns.svc"]
    assert read(signed({**GOOD, "hosts": hosts, "master": hosts[0]})) == 3


def test_every_port_of_the_operators_is_taken() -> None:
    for port in (port_at(0), port_at(PORTS - 1)):
        assert read(signed({**GOOD, "port": port})) == 3


def test_through_a_rotation_old_and_new_pods_take_what_is_signed_with_both() -> None:
    (old,), seed = KEYS.private, KEYS.agents_seed
    both = SigningKeys((b"a newer key in front of that one", old), seed)
    new = SigningKeys(both.private[:1], seed)
    for keys in (KEYS, both, new):
        assert read(signed(GOOD, both), worker(keys)) == 3
    with pytest.raises(ProtocolError, match="none was made with a key that this pod knows"):
        read(signed(GOOD, new), worker(KEYS))


def test_the_same_text_is_verified_once_however_often_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[bytes] = []
    verify = ed25519.verify
    monkeypatch.setattr(ed25519, "verify", lambda *given: checked.append(given[1]) is None and verify(*given))
    mine, data = Authority(worker()), signed(GOOD)
    for _ in range(5):
        mine.read(json.loads(json.dumps(data)))
    assert len(checked) == 1
    with pytest.raises(ProtocolError):
        mine.read({**data, "attempt": 4})


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
    """The attack of the review: the token was read in an annotation, and an attempt with a foreign master pushed."""
    agents = start_group(job, 2)
    joined(agents[0], 2)
    pids = [rank_pid(job, rank, 1) for rank in range(2)]
    genuine = job.assignment(2, [0, 1])
    foreign = {**genuine, "hosts": [EVIL, job.host(1)], "master": EVIL}
    for forged in ({**foreign}, signed(foreign, STRANGER), {**genuine, "attempt": 2**53}, {**genuine, "attempt": 999}):
        status, text = agents[0].request("POST", "/v1/assignment", forged)
        assert (status, text.startswith("assignment.")) == (400, True)
    assert [attempt_of(agent) for agent in agents] == [1, 1]
    assert [rank_pid(job, rank, 1) for rank in range(2)] == pids
    assert agents[0].request("POST", "/v1/assignment", genuine)[0] == 204
    rank_pid(job, 1, 2)


def test_a_forged_annotation_moves_nobody(job: Job) -> None:
    agent = start_group(job, 1)[0]
    agent.until_state("Running")
    agent.annotate(signed(job.assignment(2), STRANGER))
    until(lambda: "none was made with a key that this pod knows" in agent.output())
    assert attempt_of(agent) == 1
    agent.annotate(signed({**job.assignment(2), "job": "another-uid"}))
    until(lambda: "is not this job's uid" in agent.output())
    agent.annotate(job.assignment(2))
    agent.until_state("Running", 2)
    agent.annotate(job.assignment(1))
    assert agent.request("POST", "/v1/assignment", job.assignment(1))[0] == 409, "a genuine one of before is just old"


def test_a_lead_that_is_none_moves_no_member(job: Job) -> None:
    """Whoever answers at the lead's name and lets members join can't make them train."""
    with socket.create_server((job.address(0), job.agent_port)) as lead:
        lead.settimeout(20)
        member = job.agent(1)
        member.annotate(job.assignment(1, [0, 1], state="Hold"))
        member.start("sh", "-c", RANK, "sh", str(job.folder))
        peer, _ = lead.accept()
        with peer:
            peer.settimeout(20)
            peer.recv(4_096)
            forged = signed(job.assignment(2, [0, 1]), STRANGER)
            line = {"type": "assignment", "assignment": forged}
            peer.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + json.dumps(line).encode() + b"\n")
            until(lambda: "none was made with a key that this pod knows" in member.output())
            assert attempt_of(member) == 1


def test_an_agent_of_another_job_joins_no_lead(job: Job) -> None:
    """Not even with the namespace's Secret, which all of its jobs share: the token is each job's own."""
    agent = start_group(job, 1)[0]
    agent.until_state("Running")
    other = KEYS.job_token("ns", "another-uid")
    for path in ("/v1/stream", "/v1/join", "/v1/state"):
        assert agent.request("GET", path, token=other)[0] == 401
    with socket.create_connection((agent.address, job.agent_port), timeout=10) as stranger:
        stranger.sendall(
            f"GET /v1/join HTTP/1.1\r\nTrainmaster-Token: {TOKEN}\r\nUpgrade: trainmaster/1\r\n\r\n".encode()
            + b'{"type":"hello","job":"another-uid","worker":5,"uid":"five","seen":1}\n'
        )
        answer = b""
        while more := stranger.recv(4_096):
            answer += more
    assert b"101" in answer and b"assignment" not in answer, "let go without a word"
    assert [member["worker"] for member in agent.state()["members"]] == [0]


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


def test_what_operator_and_agent_derive_is_the_same() -> None:
    settings = worker()
    assert job_token(settings.agents_secret, settings.job_uid) == KEYS.job_token("ns", JOB_UID) == TOKEN
    assert job_token("", settings.job_uid) == ""
    assert settings.public_keys == tuple(base64.b64decode(text) for text in KEYS.public_keys.split(","))

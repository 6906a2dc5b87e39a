"""An attacker who can read pods, or intercept traffic, forges assignments. Agents accept only signed ones."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.signer import FOREIGN, GOOD, JOB_UID, KEYS, TOKEN, environment, signed
from trainmaster_operator.agent import ed25519
from trainmaster_operator.agent.authority import Authority
from trainmaster_operator.agent.settings import AgentSettings, read_settings
from trainmaster_operator.api.signing import SigningKeys
from trainmaster_operator.wire.assignment import PORTS, port_at
from trainmaster_operator.wire.signing import job_token, key_id
from trainmaster_operator.wire.values import ProtocolError

EVIL = "10.9.8.7"


def worker(keys: SigningKeys = KEYS, **environ: str) -> AgentSettings:
    return read_settings({**environment(keys), "TRAINMASTER_WORKER": "1", **environ})


def read(data: Any, settings: AgentSettings | None = None) -> int:
    return Authority(settings or worker()).read(data).attempt


FORGED: dict[str, dict[str, Any]] = {
    "unsigned": GOOD,
    "signed by somebody else": signed(GOOD, FOREIGN),
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
    """A test's key may leak, or the operator may be at fault. Neither can send ranks to a foreign host."""
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


def test_what_operator_and_agent_derive_is_the_same() -> None:
    settings = worker()
    assert job_token(settings.agents_secret, settings.job_uid) == KEYS.job_token("ns", JOB_UID) == TOKEN
    assert job_token("", settings.job_uid) == ""
    assert settings.public_keys == tuple(base64.b64decode(text) for text in KEYS.public_keys.split(","))

"""The tests' own operator has keys; here is what it signs with them, and what they put into a pod's environment."""

from __future__ import annotations

import base64
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from trainmaster_operator.api.signing import SigningKeys
from trainmaster_operator.wire.signing import canonical, key_id

KEYS = SigningKeys((b"the operator's key of the tests:",), b"the seed of the tests' secrets:)")
# Keys of somebody else: what these sign is signed well, but not by the operator.
FOREIGN = SigningKeys((b"a key that no pod was made with:",), b"another seed, so another secret:")
JOB, JOB_UID, NAMESPACE = "job", "uid-of-the-job", "ns"


def signed(assignment: dict[str, Any], keys: SigningKeys = KEYS) -> dict[str, Any]:
    """Returns an assignment's JSON object with its signatures, in place of those that it had."""
    body = {name: value for name, value in assignment.items() if name != "signatures"}
    message = canonical(body).encode()
    signatures = {}
    for seed in keys.private:
        key = Ed25519PrivateKey.from_private_bytes(seed)
        signatures[key_id(key.public_key().public_bytes_raw())] = base64.b64encode(key.sign(message)).decode()
    return {**body, "signatures": signatures}


def environment(keys: SigningKeys = KEYS, *, job_uid: str = JOB_UID) -> dict[str, str]:
    """Returns the variables of a worker's manifest that name its job and the keys that it trusts."""
    return {
        "TRAINMASTER_JOB": JOB,
        "TRAINMASTER_JOB_UID": job_uid,
        "TRAINMASTER_NAMESPACE": NAMESPACE,
        "TRAINMASTER_PUBLIC_KEYS": keys.public_keys,
        "TRAINMASTER_AGENTS_SECRET": keys.agents_secret(NAMESPACE).value,
    }


TOKEN = KEYS.job_token(NAMESPACE, JOB_UID)

# A first assignment of that job, before it is signed.
GOOD: dict[str, Any] = {
    "job": JOB_UID,
    "attempt": 3,
    "workers": [0, 1],
    "uids": ["a", "b"],
    "hosts": ["job-0.job.ns.svc", "job-1.job.ns.svc"],
    "master": "job-0.job.ns.svc",
    "port": 28533,
    "state": "Run",
    "graceSeconds": 0.4,
}

"""The tests' own operator, as far as its word goes: keys, what they sign, and what they put into a pod's environ."""

from __future__ import annotations

import base64
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from trainmaster.api.signing import SigningKeys
from trainmaster.wire.signing import canonical, key_id

KEYS = SigningKeys((b"the operator's key of the tests:",), b"the seed of the tests' secrets:)")
# Somebody else's: what they sign is signed well, by the wrong one.
STRANGER = SigningKeys((b"a key that no pod was made with:",), b"another seed, so another secret:")
JOB, JOB_UID, NAMESPACE = "job", "uid-of-the-job", "ns"


def signed(assignment: dict[str, Any], keys: SigningKeys = KEYS) -> dict[str, Any]:
    """An assignment's JSON object with the signatures that belong under it, whatever it had before."""
    body = {name: value for name, value in assignment.items() if name != "signatures"}
    message = canonical(body).encode()
    signatures = {}
    for seed in keys.private:
        key = Ed25519PrivateKey.from_private_bytes(seed)
        signatures[key_id(key.public_key().public_bytes_raw())] = base64.b64encode(key.sign(message)).decode()
    return {**body, "signatures": signatures}


def environment(keys: SigningKeys = KEYS, *, job_uid: str = JOB_UID) -> dict[str, str]:
    """What the manifest of a worker says of its job, and of whom it trusts."""
    return {
        "TRAINMASTER_JOB": JOB,
        "TRAINMASTER_JOB_UID": job_uid,
        "TRAINMASTER_NAMESPACE": NAMESPACE,
        "TRAINMASTER_PUBLIC_KEYS": keys.public_keys,
        "TRAINMASTER_AGENTS_SECRET": keys.agents_secret(NAMESPACE).value,
    }


TOKEN = KEYS.job_token(NAMESPACE, JOB_UID)

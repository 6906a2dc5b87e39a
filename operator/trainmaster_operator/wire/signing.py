"""The signed text of an assignment, the id of a key, and the token of a job's agents are the same on both sides.

Ed25519 itself is each side's own: the operator has `cryptography`, users' images bring nothing (agent/ed25519.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

SIGNATURES = "signatures"


def canonical(data: Mapping[str, Any]) -> str:
    """Returns the JSON of an object: keys in order, no blanks, ASCII only, so that equal objects are equal texts."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def signed_text(data: Mapping[str, Any]) -> bytes:
    """Returns what is signed of an assignment: all of its object but the signatures."""
    return canonical({name: value for name, value in data.items() if name != SIGNATURES}).encode()


def key_id(public_key: bytes) -> str:
    """Returns the id by which a signature names the key that it was made with."""
    from hashlib import sha256

    return sha256(public_key).hexdigest()[:16]


def job_token(agents_secret: str, job_uid: str) -> str:
    """Returns the token of a job's agents' port; empty, so that nothing opens it, where the namespace has no Secret."""
    if not agents_secret:
        return ""
    # Here, because it costs 3 ms of an agent's start, and nobody asks for it before that.
    import hmac

    return hmac.new(agents_secret.encode(), job_uid.encode(), "sha256").hexdigest()

"""Both sides use this module for an assignment's signed text, a key's id, and the token of a job's agents.

For Ed25519, the operator uses the library `cryptography`. The agent has its own code (agent/ed25519.py), because users'
images may lack such a library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

SIGNATURES = "signatures"


def canonical(data: Mapping[str, Any]) -> str:
    """Returns an object's JSON with sorted keys, no blanks and ASCII only, so that equal objects give equal texts."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def signed_text(data: Mapping[str, Any]) -> bytes:
    """Returns an assignment's signed text: its object without the signatures."""
    return canonical({name: value for name, value in data.items() if name != SIGNATURES}).encode()


def key_id(public_key: bytes) -> str:
    """Returns the id by which a signature names its key."""
    from hashlib import sha256

    return sha256(public_key).hexdigest()[:16]


def job_token(agents_secret: str, job_uid: str) -> str:
    """Returns the token for the port of a job's agents; empty without a secret: the port then accepts no request."""
    if not agents_secret:
        return ""
    # Imported here, because it costs 3 ms of an agent's start and is needed only later.
    import hmac

    return hmac.new(agents_secret.encode(), job_uid.encode(), "sha256").hexdigest()

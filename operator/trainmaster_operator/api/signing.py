"""Signs assignments with the operator's keys, and derives the token of a job's agents.

An assignment decides what runs with a job's data and rights. It is stored in an annotation of pods, which others can
read and may be able to write. So assignments are signed. Agents get the public keys in their environment and accept
only signed assignments. The token only authenticates connections to the agents' port. It is derived from a Secret that
exists in every namespace with jobs.

Keys and secrets are plain values here. The controller reads and creates them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from trainmaster_operator.wire.assignment import Assignment, parse_text
from trainmaster_operator.wire.names import ASSIGNMENT_ANNOTATION
from trainmaster_operator.wire.signing import SIGNATURES, canonical, job_token, key_id, signed_text
from trainmaster_operator.wire.values import ProtocolError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SEED_BYTES = 32
AGENTS_SECRET_KEY = "secret"
AGENTS_SECRET_TYPE = "trainmaster.dev/agents"
# Number of cached signatures. A reconciliation needs each signature two or three times (template, annotation, push).
REMEMBERED_SIGNATURES = 64
# Maximum number of workers in all cached assignments, enough for 25 of the largest jobs or ten thousand small ones.
REMEMBERED_WORKERS = 100_000


@dataclass(frozen=True)
class AgentsSecret:
    """AgentsSecret is the Secret of a namespace's agents. Its name depends on its value, so its value never changes."""

    name: str
    value: str = field(repr=False)


@dataclass(frozen=True)
class SigningKeys:
    """SigningKeys contains private Ed25519 keys (32 bytes each, newest first) and the seed of the agents' secrets.

    Every assignment is signed with all keys, so that pods created with an older key accept it.
    """

    private: tuple[bytes, ...] = field(repr=False)
    agents_seed: bytes = field(repr=False)
    _read: _Read = field(default_factory=lambda: _Read(), init=False, repr=False, compare=False)

    @property
    def public_keys(self) -> str:
        """Returns TRAINMASTER_PUBLIC_KEYS for agents: keys in base64, separated by commas, with the newest first."""
        return ",".join(base64.b64encode(_public(seed)).decode() for seed in self.private)

    def sign(self, assignment: Assignment) -> str:
        """Returns the assignment as a JSON object with `signatures`, in the form that agents receive."""
        data = assignment.to_wire()
        return canonical({**data, SIGNATURES: dict(_signatures(self.private, signed_text(data)))})

    def read(self, text: object) -> Assignment:
        """Returns the assignment in an annotation of any job. Raises ProtocolError if no key has signed it."""
        if not isinstance(text, str):
            raise ProtocolError(f"{ASSIGNMENT_ANNOTATION}: not a text")
        try:
            digest = hashlib.sha256(text.encode()).digest()
            return self._read.get(digest) or self._read.keep(digest, self._verified(text))
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"{ASSIGNMENT_ANNOTATION}: not an assignment of this operator: {error}") from error

    def agents_secret(self, namespace: str) -> AgentsSecret:
        """Returns the Secret from which the agents of a namespace derive their jobs' tokens."""
        value = hmac.digest(self.agents_seed, f"agents/{namespace}".encode(), "sha256").hex()
        return AgentsSecret(f"trainmaster-agents-{hashlib.sha256(value.encode()).hexdigest()[:10]}", value)

    def job_token(self, namespace: str, job_uid: str) -> str:
        """Returns the token of a job's agents, which derive it in the same way."""
        return job_token(self.agents_secret(namespace).value, job_uid)

    def _verified(self, text: str) -> Assignment:
        from cryptography.exceptions import InvalidSignature

        data = parse_text(text)
        signatures = data.get(SIGNATURES) if isinstance(data, dict) else None
        if not isinstance(signatures, dict):
            raise ProtocolError("it isn't signed")
        message = signed_text(data)
        for seed in self.private:
            signature = signatures.get(key_id(_public(seed)))
            if isinstance(signature, str):
                try:
                    _key(seed).public_key().verify(base64.b64decode(signature, validate=True), message)
                except InvalidSignature:
                    continue
                return Assignment.parse(data)
        raise ProtocolError("none of the operator's keys has signed it")


class _Read:
    """_Read caches assignments by the digest of their text, so that each is verified once and pods share the result.

    The cache is limited by the number of workers in the assignments, because each worker needs about 250 bytes.
    """

    def __init__(self) -> None:
        self._assignments: OrderedDict[bytes, Assignment] = OrderedDict()
        self._workers = 0

    def get(self, digest: bytes) -> Assignment | None:
        assignment = self._assignments.get(digest)
        if assignment is not None:
            self._assignments.move_to_end(digest)
        return assignment

    def keep(self, digest: bytes, assignment: Assignment) -> Assignment:
        self._assignments[digest] = assignment
        self._workers += len(assignment.workers)
        while self._workers > REMEMBERED_WORKERS:
            _, oldest = self._assignments.popitem(last=False)
            self._workers -= len(oldest.workers)
        return assignment


@lru_cache(maxsize=32)
def _key(seed: bytes) -> Ed25519PrivateKey:
    # Imported here, because the command line renders jobs without keys and doesn't need this module.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed)


@lru_cache(maxsize=32)
def _public(seed: bytes) -> bytes:
    return _key(seed).public_key().public_bytes_raw()


@lru_cache(maxsize=REMEMBERED_SIGNATURES)
def _signatures(private: tuple[bytes, ...], message: bytes) -> tuple[tuple[str, str], ...]:
    return tuple((key_id(_public(seed)), base64.b64encode(_key(seed).sign(message)).decode()) for seed in private)

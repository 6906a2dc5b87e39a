"""The operator's keys, and what follows from them: signatures under assignments, and the token of a job's agents.

An assignment decides what runs with a job's data and rights, and stands where whoever may read pods reads it. So it is
signed: agents have the public keys in their environment, and take nothing else. The token opens the agents' port. It
keeps strangers out and decides nothing; it is derived from a Secret that every namespace with jobs has.

Keys and secrets are values here; `controller.signing_keys` reads and makes them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from trainmaster.api.json_values import loads
from trainmaster.api.protocol import ASSIGNMENT_ANNOTATION, MAX_ASSIGNMENT_CHARACTERS, Assignment, ProtocolError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SEED_BYTES = 32
PUBLIC_KEYS_VARIABLE = "TRAINMASTER_PUBLIC_KEYS"
AGENTS_SECRET_KEY = "secret"
AGENTS_SECRET_TYPE = "trainmaster.dev/agents"
# A pass asks for the same signature twice or three times (template, annotation, push).
REMEMBERED_SIGNATURES = 64


@dataclass(frozen=True)
class AgentsSecret:
    """The Secret of a namespace's agents. Its name follows from its value, so it is made once and never changed."""

    name: str
    value: str = field(repr=False)


@dataclass(frozen=True)
class SigningKeys:
    """The private Ed25519 keys (32 bytes each), the newest first, and the seed of the namespaces' secrets.

    Every assignment is signed with all keys, so that pods go on that were made when only an older one was known.
    """

    private: tuple[bytes, ...] = field(repr=False)
    agents_seed: bytes = field(repr=False)
    # By digest of the text. A text is checked once for as long as somebody holds what was read from it, and the pods of
    # a job share one value.
    _read: WeakValueDictionary[bytes, Assignment] = field(
        default_factory=WeakValueDictionary, init=False, repr=False, compare=False
    )

    @property
    def public_keys(self) -> str:
        """What agents get as TRAINMASTER_PUBLIC_KEYS: base64, separated by commas, the newest first."""
        return ",".join(base64.b64encode(_public(seed)).decode() for seed in self.private)

    def sign(self, assignment: Assignment) -> str:
        """The assignment as it travels: its JSON object with `signatures`."""
        text = assignment.to_json()
        return canonical({**json.loads(text), "signatures": dict(_signatures(self.private, text.encode()))})

    def read(self, text: object) -> Assignment:
        """The assignment that an annotation shows, of whichever job. Raises ProtocolError if no key has signed it."""
        if not isinstance(text, str) or len(text) > MAX_ASSIGNMENT_CHARACTERS:
            raise ProtocolError(
                f"{ASSIGNMENT_ANNOTATION}: not a text of at most {MAX_ASSIGNMENT_CHARACTERS} characters"
            )
        try:
            digest = hashlib.sha256(text.encode()).digest()
            assignment = self._read.get(digest)
            if assignment is None:
                assignment = self._read[digest] = self._verified(text)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"{ASSIGNMENT_ANNOTATION}: not an assignment of this operator: {error}") from error
        return assignment

    def agents_secret(self, namespace: str) -> AgentsSecret:
        """The Secret from which agents of a namespace derive their jobs' tokens."""
        value = hmac.digest(self.agents_seed, f"agents/{namespace}".encode(), "sha256").hex()
        return AgentsSecret(f"trainmaster-agents-{hashlib.sha256(value.encode()).hexdigest()[:10]}", value)

    def job_token(self, namespace: str, job_uid: str) -> str:
        """The token of a job's agents, as they derive it themselves."""
        return hmac.digest(self.agents_secret(namespace).value.encode(), job_uid.encode(), "sha256").hex()

    def _verified(self, text: str) -> Assignment:
        from cryptography.exceptions import InvalidSignature

        data = loads(text)
        signatures = data.pop("signatures", None) if isinstance(data, dict) else None
        if not isinstance(signatures, dict):
            raise ProtocolError("it isn't signed")
        message = canonical(data).encode()
        for seed in self.private:
            signature = signatures.get(key_id(_public(seed)))
            if isinstance(signature, str):
                try:
                    _key(seed).public_key().verify(base64.b64decode(signature, validate=True), message)
                except InvalidSignature:
                    continue
                return Assignment.parse(message.decode())
        raise ProtocolError("none of the operator's keys has signed it")


def canonical(data: Mapping[str, Any]) -> str:
    """The JSON that is signed: keys in order, no blanks, ASCII only. Agents write the same from what they have read."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def key_id(public_key: bytes) -> str:
    """How a signature names the key that it was made with."""
    return hashlib.sha256(public_key).hexdigest()[:16]


@lru_cache(maxsize=32)
def _key(seed: bytes) -> Ed25519PrivateKey:
    # Here: the command line renders jobs, and needs no keys for it.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed)


@lru_cache(maxsize=32)
def _public(seed: bytes) -> bytes:
    return _key(seed).public_key().public_bytes_raw()


@lru_cache(maxsize=REMEMBERED_SIGNATURES)
def _signatures(private: tuple[bytes, ...], message: bytes) -> tuple[tuple[str, str], ...]:
    return tuple((key_id(_public(seed)), base64.b64encode(_key(seed).sign(message)).decode()) for seed in private)

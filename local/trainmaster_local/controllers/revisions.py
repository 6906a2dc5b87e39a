"""ControllerRevisions are the history of a StatefulSet's pod template, with Kubernetes' own hashes.

`pkg/controller/history/controller_history.go` (HashControllerRevision) and `stateful_set_utils.go` (getPatch): the
FNV-1 hash of the template as compact JSON with `$patch: replace`, and of the collision count; its decimal digits are
written in Kubernetes' safe alphabet. The same template gives the same name as on a real cluster
(local/tests/data/kubernetes-api.jsonl).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

Object = Mapping[str, Any]

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # rand.SafeEncodeString: no vowels, so no words


def _fnv1(data: bytes) -> int:
    value = 0x811C9DC5
    for byte in data:
        value = (value * 0x01000193) & 0xFFFFFFFF
        value ^= byte
    return value


# Cached, because each reconciliation hashes the set's template.
@lru_cache(maxsize=1024)
def safe_hash(data: bytes) -> str:
    """Returns the FNV-1 hash (32 bits) of the data, in the alphabet of names."""
    return "".join(_ALPHABET[ord(digit) % len(_ALPHABET)] for digit in str(_fnv1(data)))


def template_data(template: Object) -> dict[str, Any]:
    """Returns a revision's data: a patch that replaces the set's template."""
    return {"spec": {"template": {**template, "$patch": "replace"}}}


def revision_hash(template: Object, collisions: int = 0) -> str:
    """Returns the part of a revision's name after the set's."""
    raw = json.dumps(template_data(template), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # Go's encoding/json escapes these.
    for char in "<>&\u2028\u2029":
        raw = raw.replace(char, f"\\u{ord(char):04x}")
    return safe_hash(raw.encode() + str(collisions).encode())


def revision(owner: Object, api_version: str, kind: str, template: Object, number: int) -> dict[str, Any]:
    """Returns the ControllerRevision of a template, owned by `owner`. Newer revisions have a higher `number`."""
    metadata = owner["metadata"]
    digest = revision_hash(template)
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": f"{metadata['name']}-{digest}",
            "namespace": metadata["namespace"],
            "labels": {
                **((template.get("metadata") or {}).get("labels") or {}),
                "controller.kubernetes.io/hash": digest,
            },
            "ownerReferences": [
                {
                    "apiVersion": api_version,
                    "kind": kind,
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "data": template_data(template),
        "revision": number,
    }

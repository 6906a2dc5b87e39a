"""The mounted configuration is compared with what `spec.training` says, whose hash is in the StatefulSet."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import yaml

from trainloop.errors import ConfigError


def require_unchanged(file: Path, text: str) -> None:
    """Raises ConfigError where the text of the mounted configuration has other values than `spec.training`.

    It names code (task, hooks), and anyone who may write ConfigMaps could have changed it.
    """
    digest, _, mounted = os.environ["TRAINMASTER_TRAINING"].partition(" ")
    # The local cluster has no mounts: it writes its own paths in place of the container's into every ConfigMap.
    is_rewritten = "TRAINMASTER_HOSTS_FILE" in os.environ
    if mounted and file == Path(mounted) and not is_rewritten and _digest(text) != digest:
        raise ConfigError(
            f"--config {file} isn't what spec.training says, so it isn't used: find out who may write ConfigMaps in "
            "this namespace, and delete this one: the operator makes it again"
        )


def _digest(text: str) -> str:
    """Returns the hash of the values that `text` has by YAML's own rules; empty where JSON can't have them."""
    values = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    try:
        return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    except (TypeError, ValueError):
        return ""

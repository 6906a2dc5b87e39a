"""One error says everything that can be wrong with a kubeconfig."""

from __future__ import annotations

from typing import Any

MAX_SHOWN = 100


class KubeconfigError(Exception):
    """The kubeconfig can't be used. `str()` is one sentence: the file, the field, the value and what would be right."""


def shown(value: Any) -> str:
    """Returns a value of a kubeconfig as a sentence quotes it. Secrets aren't quoted: name their field only."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def one_of(names: list[str]) -> str:
    """Returns what there is to choose from."""
    return ", ".join(shown(name) for name in names[:10]) + (", ..." if len(names) > 10 else "") if names else "none"

"""The entries of this package's YAML files become typed values; `tests/mistakes/__init__.py` explains their form."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

FOLDER = Path(__file__).resolve().parent

Answerer = Literal["rule", "schema", "operator", "kubectl", "nobody"]

_JOB = """\
apiVersion: trainmaster.dev/v1alpha1
kind: DistributedTrainingJob
metadata:
{metadata}
spec:
{spec}
"""
# The text before an entry's text in a job's spec, and the entry's indentation there.
_IN_SPEC = {
    "spec": ("", 0),
    "training": ("workers: 1\ntraining:\n", 2),
    "pod": ("workers: 1\npodTemplate:\n  spec:\n", 4),
    "worker": ("workers: 1\npodTemplate:\n  spec:\n    containers:\n      - name: worker\n", 8),
}
_SCOPES = ("file", "metadata", *_IN_SPEC)
_MOST_OF_A_NAME = 52


@dataclass(frozen=True)
class Entry:
    """Holds one manifest, with the answers expected from both sides."""

    theme: str
    name: str
    manifest: str
    # The output of `trainmaster validate` on stderr.
    sentences: tuple[str, ...]
    # The side that refuses the manifest online; None if both sides accept it.
    by: Answerer | None
    # That side's sentence; empty if it gives the same sentences.
    says: tuple[str, ...] = ()
    # The reason why only `validate` can see the mistake.
    why: str = ""

    @property
    def identifier(self) -> str:
        """Returns the name in a form that a job or a file can have."""
        return identifier(self.name)


class WrongEntry(Exception):
    """An entry doesn't have the form that this package's docstring describes."""


def identifier(name: str) -> str:
    """Returns an entry's name in a form that a job or a file can have."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_MOST_OF_A_NAME].rstrip("-")


@cache
def all_entries() -> tuple[Entry, ...]:
    """Returns the entries of all files, in the order of the files' names. Raises WrongEntry."""
    paths = sorted(FOLDER.glob("*.yaml"))
    entries = tuple(entry for path in paths for entry in read_theme(path.read_text(encoding="utf-8"), path.name))
    seen: set[str] = set()
    for entry in entries:
        if entry.identifier in seen:
            raise WrongEntry(f"{entry.theme}: {entry.name}: another entry has this name, or one too much like it")
        seen.add(entry.identifier)
    return entries


def read_theme(text: str, file: str) -> Iterator[Entry]:
    """Yields the entries of a theme's text. Raises WrongEntry, which names the file."""
    theme = yaml.load(text, yaml.CSafeLoader)
    title = theme.pop("theme")
    for accepted, key in ((False, "refused"), (True, "accepted")):
        for raw in theme.pop(key, []):
            try:
                yield _entry(title, raw, accepted)
            except (KeyError, ValueError) as error:
                raise WrongEntry(f"{file}: {raw.get('name')}: {error}") from error
    if theme:
        raise WrongEntry(f"{file}: has {', '.join(theme)} beside theme, refused and accepted")


def _entry(theme: str, raw: dict[str, Any], accepted: bool) -> Entry:
    unknown = set(raw) - {"name", "validate", *_SCOPES, *([] if accepted else ["online"])}
    if unknown:
        raise ValueError(f"unknown keys {', '.join(unknown)}")
    sentences = _texts(raw.get("validate", []))
    by, says = _online(raw.get("online", "rule"))
    if not accepted and not sentences:
        raise ValueError("validate has no sentence")
    name = raw["name"]
    manifest = _manifest(raw, identifier(name))
    if accepted:
        return Entry(theme, name, manifest, sentences, None)
    if by == "nobody":
        return Entry(theme, name, manifest, sentences, by, why=says[0])
    return Entry(theme, name, manifest, sentences, by, says)


def _online(raw: Any) -> tuple[Answerer, tuple[str, ...]]:
    given, says = (raw, ()) if isinstance(raw, str) else next((by, _texts(text)) for by, text in raw.items())
    by: Answerer | None = next((one for one in get_args(Answerer) if one == given), None)
    if by is None:
        raise ValueError(f"online has {given}, not one of {', '.join(get_args(Answerer))}")
    if not says and by in ("schema", "kubectl", "nobody"):
        raise ValueError(f"{by} needs its text")
    return by, says


def _texts(raw: Any) -> tuple[str, ...]:
    return (raw,) if isinstance(raw, str) else tuple(raw)


def _manifest(raw: dict[str, Any], name: str) -> str:
    scopes = [scope for scope in _SCOPES if scope in raw]
    if len(scopes) != 1:
        raise ValueError(f"has {len(scopes)} of {', '.join(_SCOPES)}, not one")
    [scope] = scopes
    text = str(raw[scope])
    if scope == "file":
        return text
    if scope == "metadata":
        return _JOB.format(metadata=textwrap.indent(text, "  "), spec="  workers: 1")
    before, depth = _IN_SPEC[scope]
    spec = before + textwrap.indent(text.rstrip("\n"), " " * depth)
    return _JOB.format(metadata=f"  name: {name}", spec=textwrap.indent(spec, "  "))

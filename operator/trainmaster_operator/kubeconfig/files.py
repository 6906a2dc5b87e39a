"""The files of a kubeconfig are found, read and merged as kubectl does it.

KUBECONFIG may name several, of which some may be missing or empty. Of two entries with one name the first counts, and
so does the first file that names a current context.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainmaster_operator.kubeconfig.errors import KubeconfigError, shown

DEFAULT_PATH = "~/.kube/config"
# Bytes. A device or a log that was named by mistake isn't read to its end.
MAX_BYTES = 8 * 1024 * 1024
_LISTS = {"contexts": "context", "clusters": "cluster", "users": "user"}
# What makes paths of an entry relative to the file that it stands in.
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
HINT = "name a kubeconfig with --kubeconfig or KUBECONFIG"


class _Loader(yaml.BaseLoader):
    """The loader knows text, booleans and null, and makes nothing else of any tag."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:null", yaml.SafeLoader.yaml_implicit_resolvers["~"][0][1], ["~", "n", "N", ""]
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", yaml.SafeLoader.yaml_implicit_resolvers["y"][0][1], list("yYnNtTfFoO")
)
_Loader.add_constructor("tag:yaml.org,2002:null", lambda loader, node: None)
_Loader.add_constructor("tag:yaml.org,2002:bool", lambda loader, node: str(node.value).lower() in ("yes", "true", "on"))


@dataclass(frozen=True)
class Entry:
    """Entry is a context, cluster or user, with the file that it stands in."""

    file: str
    # As a sentence names it: clusters[prod].cluster
    field: str
    fields: Mapping[str, Any]


@dataclass
class Merged:
    """Merged is what the files say together."""

    # As they were given; for sentences.
    source: str
    files: list[str]
    current_context: str
    contexts: dict[str, Entry]
    clusters: dict[str, Entry]
    users: dict[str, Entry]

    @property
    def empty(self) -> bool:
        """Returns whether there is nothing in it at all, as in a file that `touch` made."""
        return not (self.current_context or self.contexts or self.clusters or self.users)


def merged_files(given: str | None) -> Merged | None:
    """Returns what the files say; None where none was named and the default one isn't there. Raises KubeconfigError."""
    named = given or os.environ.get("KUBECONFIG", "")
    paths = [_expanded(path) for path in (named or DEFAULT_PATH).split(os.pathsep) if path]
    there = [path for path in paths if _exists(path)]
    if not there:
        if named:
            option = "--kubeconfig" if given else "KUBECONFIG"
            raise KubeconfigError(f"kubeconfig {named} ({option}): doesn't exist; {HINT}")
        return None
    merged = Merged(os.pathsep.join(there), there, "", {}, {}, {})
    for path in there:
        _merge(merged, path, _read(path))
    return merged


def _expanded(path: str) -> str:
    try:
        return str(Path(path).expanduser())
    except RuntimeError:
        # There is no such user, so the ~ is a letter.
        return path


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        # A folder that may not be searched, a name that is too long: reading the file says which.
        return True


def _read(path: str) -> Mapping[str, Any]:
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise KubeconfigError(f"kubeconfig {path}: can't be read ({error.strerror}); {HINT}") from error
    except ValueError as error:
        raise KubeconfigError(f"kubeconfig {path!r}: is no name of a file; {HINT}") from error
    if len(raw) > MAX_BYTES:
        raise KubeconfigError(f"kubeconfig {path}: is larger than {MAX_BYTES >> 20} MiB, so it is none; {HINT}")
    try:
        document = yaml.load(raw.decode("utf-8-sig"), Loader=_Loader)
    except UnicodeDecodeError as error:
        raise KubeconfigError(f"kubeconfig {path}: byte {error.start} is not UTF-8; {HINT}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        problem = error.problem or error.context
        raise KubeconfigError(f"kubeconfig {path}: not YAML{at}: {problem}; correct it, or {HINT}") from error
    except (yaml.YAMLError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise KubeconfigError(f"kubeconfig {path}: not YAML: {problem}; correct it, or {HINT}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise KubeconfigError(f"kubeconfig {path}: holds no clusters, contexts and users; {HINT}")
    return document


def _merge(merged: Merged, path: str, document: Mapping[str, Any]) -> None:
    kind = document.get("kind")
    if kind not in (None, "", "Config"):
        raise KubeconfigError(f"kubeconfig {path}: kind: {shown(kind)} is no kubeconfig, whose kind is Config; {HINT}")
    current = document.get("current-context") or ""
    if not isinstance(current, str):
        raise KubeconfigError(f"kubeconfig {path}: current-context: is no text; give the name of a context")
    merged.current_context = merged.current_context or current
    for plural, singular in _LISTS.items():
        known: dict[str, Entry] = getattr(merged, plural)
        entries = document.get(plural)
        if entries is not None and not isinstance(entries, list):
            raise KubeconfigError(f"kubeconfig {path}: {plural}: is no list; give items with name and {singular}")
        for position, item in enumerate(entries or ()):
            name = item.get("name") if isinstance(item, dict) else None
            if not isinstance(name, str) or not name:
                place = f"{plural}[{position}]"
                raise KubeconfigError(f"kubeconfig {path}: {place}: has no name; give it name and {singular}")
            field = f"{plural}[{name}].{singular}"
            fields = item.get(singular)
            if fields is not None and not isinstance(fields, dict):
                raise KubeconfigError(f"kubeconfig {path}: {field}: is no mapping; see kubectl config view")
            known.setdefault(name, Entry(path, field, _absolute(fields or {}, path)))


def folder_of(file: str) -> Path:
    """Returns the folder that paths in a kubeconfig are relative to."""
    return Path(file).absolute().parent


def _absolute(fields: Mapping[str, Any], path: str) -> dict[str, Any]:
    return {
        key: str(folder_of(path) / value) if key in _PATHS and isinstance(value, str) and value else value
        for key, value in fields.items()
    }

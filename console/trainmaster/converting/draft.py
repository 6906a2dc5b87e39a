"""A draft is the job that is being made of another operator's, with the documents that it needs beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from trainmaster.converting.fields import Field, Path, Target
from trainmaster_operator.api.v1alpha1 import API_VERSION, KIND, JobSpec

_SAME = object()
# In the order of the reference.
_ORDER = {info.alias or name: position for position, (name, info) in enumerate(JobSpec.model_fields.items())}
# Where what a pod has beyond the job's own fields goes, and what its container has.
POD: Path = ("spec", "podTemplate", "spec")


class Draft:
    """Draft has the job by paths, and puts fields of the source where they belong."""

    def __init__(self) -> None:
        self.job: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {}, "spec": {}}
        # By kind and name, in the order in which they are applied before the job.
        self.beside: dict[str, dict[str, Any]] = {}

    def keep(self, field: Field, path: Path, value: Any = _SAME, *, remark: str = "") -> None:
        """Puts a field where `path` says: as it is, or as a value that it became."""
        if value is _SAME:
            put(self.job, path, field.plain())
            field.kept(Target(path), remark)
        else:
            put(self.job, path, value)
            field.became(Target(path), remark=remark)

    def set(self, path: Path, value: Any) -> None:
        """Puts a value that no field of the source has."""
        put(self.job, path, value)

    def at(self, path: Path) -> Any:
        """Returns what the job has at a path; None where there is nothing."""
        return at(self.job, path)

    def target(self, target: Target) -> Any:
        """Returns what a document has at a target."""
        return at(self.beside[target.document] if target.document else self.job, target.path)

    def ordered(self) -> dict[str, Any]:
        """Returns the job with its fields in the order of the reference."""
        spec = self.job["spec"]
        return {**self.job, "spec": {name: spec[name] for name in sorted(spec, key=lambda name: _ORDER.get(name, 0))}}


def at(value: Any, path: Path) -> Any:
    """Returns what is at a path; None where there is nothing."""
    for part in path:
        if isinstance(part, int):
            value = value[part] if isinstance(value, list) and part < len(value) else None
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


def put(root: dict[str, Any], path: Path, value: Any) -> None:
    """Puts a value at a path, and makes what is missing on the way; a list grows by one item at most."""
    here: Any = root
    for part, following in pairwise(path):
        empty: Any = [] if isinstance(following, int) else {}
        if isinstance(part, int):
            if part == len(here):
                here.append(empty)
            here = here[part]
        else:
            here = here.setdefault(part, empty)
    last = path[-1]
    if isinstance(last, int) and last == len(here):
        here.append(value)
    else:
        here[last] = value


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yields the path of everything that is below a value."""
    below = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for part, each in below:
        yield (*path, part)
        yield from paths(each, (*path, part))


def remove(root: dict[str, Any], path: Path) -> Path:
    """Removes what is at a path, with the mappings and lists that are empty then below the second level, and returns
    the path of what is gone. Items behind one that is gone move up.
    """
    del at(root, path[:-1])[path[-1]]
    parent = path[:-1]
    return remove(root, parent) if len(parent) > 1 and not at(root, parent) else path

"""A manifest of another operator is a tree of fields, and each leaf gets one answer: where it went, or why it didn't.

A leaf is a scalar, an empty list or mapping, or a list of scalars (a command is one field to its reader). What has no
answer in the end is refused, so that nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

# Keys may have dots in them, so a path is no text until it is shown.
Path = tuple[str | int, ...]
Outcome = Literal["kept", "dropped", "refused"]


@dataclass(frozen=True)
class Target:
    """Target is a field of a document that was made: of the job where `document` is empty, else of what it names."""

    path: Path
    document: str = ""


@dataclass(frozen=True)
class Answer:
    """Answer says what became of a field; `text` is the reason, or a remark on what was kept."""

    outcome: Outcome
    text: str = ""
    targets: tuple[Target, ...] = ()


class Field:
    """Field is a mapping, a list or a leaf of a manifest. A mapping has `fields`, a list `items`, a leaf `value`."""

    def __init__(self, value: Any, path: Path = ()) -> None:
        self.path = path
        self.value: Any = None
        self.fields: dict[str, Field] | None = None
        self.items: list[Field] | None = None
        self.answer: Answer | None = None
        if isinstance(value, Mapping) and value:
            self.fields = {str(name): Field(each, (*path, str(name))) for name, each in value.items()}
        elif isinstance(value, list) and any(isinstance(each, Mapping | list) for each in value):
            self.items = [Field(each, (*path, position)) for position, each in enumerate(value)]
        else:
            self.value = value

    @classmethod
    def mapping(cls, fields: dict[str, Field], path: Path = ()) -> Field:
        """Returns a mapping of fields that are elsewhere too: answers are given to these."""
        made = cls(None, path)
        made.fields = fields
        return made

    def __str__(self) -> str:
        return dotted(self.path)

    def get(self, *names: str) -> Field | None:
        """Returns the field below by its names; None where there is none."""
        found: Field | None = self
        for name in names:
            found = found.fields.get(name) if found is not None and found.fields is not None else None
        return found

    def each(self, name: str) -> list[Field]:
        """Returns the items of the list below; none where there is no list of mappings."""
        below = self.get(name)
        return below.items if below is not None and below.items is not None else []

    def named(self, name: str) -> dict[str, Field]:
        """Returns the fields of the mapping below; none where there is no mapping."""
        below = self.get(name)
        return below.fields if below is not None and below.fields is not None else {}

    def plain(self) -> Any:
        """Returns the value of all that is in the field."""
        if self.fields is not None:
            return {name: each.plain() for name, each in self.fields.items()}
        return [each.plain() for each in self.items] if self.items is not None else self.value

    def text(self, *names: str) -> str:
        """Returns a text below; empty where there is none."""
        below = self.get(*names)
        return below.value if below is not None and isinstance(below.value, str) else ""

    def whole(self, *names: str) -> int | None:
        """Returns a whole number below; None where there is none."""
        below = self.get(*names)
        value = below.value if below is not None else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def leaves(self) -> Iterator[Field]:
        """Yields the leaves in the order of the manifest."""
        if self.fields is None and self.items is None:
            yield self
        for each in (self.fields or {}).values():
            yield from each.leaves()
        for each in self.items or []:
            yield from each.leaves()

    def kept(self, target: Target, remark: str = "") -> None:
        """Answers each leaf that has no answer: it is at the same place below the target."""
        if self.fields is None and self.items is None:
            self.answer = self.answer or Answer("kept", remark, (target,))
        for name, each in (self.fields or {}).items():
            each.kept(Target((*target.path, name), target.document), remark)
        for position, each in enumerate(self.items or []):
            each.kept(Target((*target.path, position), target.document), remark)

    def became(self, *targets: Target, remark: str = "") -> None:
        """Answers each leaf that has no answer: all of them together became the targets."""
        self._answered(Answer("kept", remark, targets))

    def dropped(self, reason: str) -> None:
        """Answers each leaf that has no answer: it needs no like."""
        self._answered(Answer("dropped", reason))

    def refused(self, reason: str) -> None:
        """Answers each leaf that has no answer: what it asks for is lost."""
        self._answered(Answer("refused", reason))

    def overruled(self, reason: str) -> None:
        """Refuses each leaf, whatever its answer was."""
        for leaf in self.leaves():
            leaf.answer = Answer("refused", reason)

    def _answered(self, answer: Answer) -> None:
        for leaf in self.leaves():
            leaf.answer = leaf.answer or answer


def dotted(path: Path) -> str:
    """Returns a path as Kubernetes writes it: spec.containers[0].image."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")

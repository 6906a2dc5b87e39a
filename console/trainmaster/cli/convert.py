"""`trainmaster convert` makes jobs of other operators' manifests, and says of every field what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainmaster.cli.documents import Document, UnreadableFile, files_of, read_documents
from trainmaster.cli.other_kinds import items_of, other_job
from trainmaster.cli.terminal import say, write
from trainmaster.cli.yaml_output import yaml_text
from trainmaster.cli.yaml_scalars import plain_scalar
from trainmaster.converting import Conversion, Note, can_convert, convert, dotted
from trainmaster_operator.api.printable import json_line, json_text, one_line
from trainmaster_operator.wire.values import mapping

# Characters of a value that are shown: a script has thousands.
_SHOWN = 60
_SHOWN_TWICE = 20


@dataclass(frozen=True)
class _Source:
    """_Source is one object of a file, with its place."""

    file: str
    document: Document
    path: str
    value: Any

    def place(self, field: str) -> str:
        line, _ = self.document.place(f"{self.path}.{field}".strip("."))
        return f"{self.file}:{line}"


def convert_files(files: Sequence[str], output: str, *, report: bool) -> int:
    """Prints the jobs to stdout and the report to stderr, or only the report, and returns the exit code: 1 when
    anything was refused or can't be read.
    """
    sources, wrong = _read(files)
    found = convert([source.value for source in sources])
    refused = False
    for conversion in found:
        source = sources[conversion.manifest]
        if conversion.notes is None:
            refused |= _left(source, report)
            continue
        for note in conversion.notes:
            _say(_line(note, sources[note.manifest]), report)
        refused |= any(note.answer.outcome == "refused" for note in conversion.notes)
        if conversion.documents:
            _say(_summary(conversion, source), report)
    if not wrong and not any(can_convert(source.value) for source in sources):
        say(f"{', '.join(files)}: there is no PyTorchJob, TrainJob or JobSet in it; give a file with one", error=True)
        return 1
    if not report:
        write(_text(found, sources, output))
    return 1 if refused or wrong else 0


def _read(files: Sequence[str]) -> tuple[list[_Source], bool]:
    """Returns the objects of the files, and whether anything can't be read, which is said."""
    sources, wrong = list[_Source](), False
    for named in files:
        try:
            for file in files_of(named):
                for document in read_documents(file):
                    for mistake in document.mistakes:
                        say(f"{file}:{mistake.line}:{mistake.column}: {mistake.message}", error=True)
                    wrong |= bool(document.mistakes)
                    sources += [_Source(file, document, *each) for each in _objects(document)]
        except UnreadableFile as error:
            say(str(error), error=True)
            wrong = True
    return sources, wrong


def _objects(document: Document) -> Iterator[tuple[str, Any]]:
    """Yields the objects of a document, each with its path in it: of a list, what is in the list."""
    if not isinstance(document.value, Mapping):
        return
    items = items_of(document.value)
    if items is None:
        yield "", document.value
        return
    yield from ((f"items[{position}]", item) for position, item in enumerate(items) if isinstance(item, Mapping))


def _left(source: _Source, report: bool) -> bool:
    """Says that an object stays as it is, and returns whether it is a job that can't be converted."""
    other = other_job(source.value)
    if other is None:
        _say(f"{source.place('')}: {_named(source)} stays as it is", report)
        return False
    _say(
        f"{source.place('')}: {_named(source)} stays as it is, because convert makes jobs of PyTorchJobs, TrainJobs "
        f"and JobSets; docs/migrating.md#{other.section} says what its fields are called here",
        report,
    )
    return True


def _say(line: str, report: bool) -> None:
    say(line, error=not report)


def _line(note: Note, source: _Source) -> str:
    """Returns what became of a field, in one line."""
    if not note.field and note.value is None:
        return f"{source.place('')}: refused: {note.answer.text}"
    field = dotted(note.field)
    given = f"{source.place(field)}: {field or note.value.get('kind')}"
    if field:
        given += f": {_shown(note.value)}"
    if note.answer.outcome != "kept":
        return one_line(f"{given}  {note.answer.outcome}: {note.answer.text}")
    became = ", ".join(
        name if _is_long(value, note.value) else f"{name}: {_shown(value)}" for name, value in note.became
    )
    remark = f"  ({note.answer.text})" if note.answer.text else ""
    return one_line(f"{given}  ->  {became}{remark}")


def _is_long(value: Any, given: Any) -> bool:
    """Returns whether a value needn't be shown again beside what it was."""
    return bool(value == given) and len(_shown(value)) > _SHOWN_TWICE


def _shown(value: Any) -> str:
    """Returns a value in short; a text that would be something else without its quotes has them."""
    is_plain = isinstance(value, str) and value.strip() == value and plain_scalar(value) == value
    text = value if is_plain else json_line(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text):,} characters)"


def _named(source: _Source) -> str:
    """Returns kind and name of an object, or what its name will begin with."""
    metadata = mapping(source.value.get("metadata"))
    return " ".join(
        str(each) for each in (source.value.get("kind"), metadata.get("name") or metadata.get("generateName")) if each
    )


def _summary(conversion: Conversion, source: _Source) -> str:
    counted = Counter(note.answer.outcome for note in conversion.notes or ())
    return (
        f"{source.place('')}: {_named(source)}: {counted['kept']} kept, "
        f"{counted['dropped']} dropped, {counted['refused']} refused"
    )


def _text(found: Sequence[Conversion], sources: Sequence[_Source], output: str) -> str:
    """Returns all documents; in YAML each job begins with where it comes from and what it lacks."""
    if output == "json":
        return "".join(json_text(body) + "\n" for each in found for body in each.documents)
    texts = []
    for each in found:
        for body in each.documents:
            is_job = each.notes is not None and body is each.documents[-1]
            texts.append((_heading(each, sources) if is_job else "") + yaml_text([body]))
    return "---\n".join(texts)


def _heading(conversion: Conversion, sources: Sequence[_Source]) -> str:
    source = sources[conversion.manifest]
    refused = [note for note in conversion.notes or () if note.answer.outcome == "refused"]
    lines = [f"From the {source.value['kind']} in {source.place('')}, by trainmaster convert."]
    if refused:
        lines.append("What it can't say here:")
    lines += [
        f"  {dotted(note.field)}: {note.answer.text}" if note.field else f"  {note.answer.text}" for note in refused
    ]
    return "".join(f"# {one_line(line)}\n" for line in lines)

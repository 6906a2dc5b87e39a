"""Handles other operators' jobs: `trainmaster convert` translates them, and `validate` recognizes them.

The report of `convert` contains a line for every field. `validate` skips other documents in a job's file (a ConfigMap,
another operator's job). In a file without a job of ours, another operator's job is a mistake; the message suggests
`convert` if `convert` can translate the job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from trainmaster.cli.documents import Document, documents_of
from trainmaster.cli.terminal import called, say, write
from trainmaster.cli.yaml_values import plain_scalar, yaml_text
from trainmaster.converting import Conversion, Note, can_convert, convert, dotted
from trainmaster_operator.api.printable import json_line, json_text, one_line
from trainmaster_operator.api.problems import VERY_SIMILAR, nearest
from trainmaster_operator.api.v1alpha1 import API_VERSION, GROUP, KIND, PLURAL, SHORT_NAME, SINGULAR
from trainmaster_operator.wire.values import mapping

# The page that explains every field of other operators' jobs.
_MIGRATING = "docs/migrating.md"


class OtherJob(NamedTuple):
    """OtherJob is another operator's type of job. Its apiVersion begins with `group`; an empty `kind` matches any."""

    group: str
    kind: str
    owner: str
    section: str


# The first match is used.
OTHER_JOBS = (
    OtherJob("trainer.kubeflow.org/", "", "Kubeflow Trainer", "from-trainjob"),
    OtherJob("kubeflow.org/v2beta1", "MPIJob", "the MPI operator", "from-mpijob"),
    OtherJob("kubeflow.org/", "MPIJob", "Kubeflow's training operator", "from-mpijob"),
    OtherJob("kubeflow.org/", "PyTorchJob", "Kubeflow's training operator", "from-pytorchjob"),
    OtherJob("kubeflow.org/", "", "Kubeflow's training operator", "from-others"),
    OtherJob("jobset.x-k8s.io/", "JobSet", "the JobSet controller", "from-jobset"),
    OtherJob("batch.volcano.sh/", "Job", "Volcano", "from-volcanos-job"),
    OtherJob("leaderworkerset.x-k8s.io/", "LeaderWorkerSet", "the LeaderWorkerSet controller", "from-leaderworkerset"),
    OtherJob("ray.io/", "", "KubeRay", "from-rayjob"),
    OtherJob("elastic.iml.github.io/", "ElasticJob", "DLRover", "from-others"),
    OtherJob("training.kubedl.io/", "", "KubeDL", "from-others"),
    OtherJob("batch/", "Job", "Kubernetes", "from-a-kubernetes-job"),
)
# If a document without apiVersion or kind contains one of these fields, it is probably an incomplete object and not a
# chart's values.
_JOBS_FIELDS = frozenset({"apiVersion", "kind", "metadata", "spec"})
# Maximum length of a shown value, and of an unchanged value that is shown twice (characters). A script can have
# thousands of characters.
_SHOWN = 60
_SHOWN_TWICE = 20


@dataclass(frozen=True)
class _Source:
    """_Source is an object in a file, with its position."""

    file: str
    document: Document
    path: str
    value: Any

    def place(self, field: str) -> str:
        line, _ = self.document.place(f"{self.path}.{field}".strip("."))
        return f"{self.file}:{line}"


def convert_files(files: Sequence[str], output: str, *, report: bool) -> int:
    """Prints the jobs to stdout and the report to stderr, and returns the exit code.

    With `report`, prints only the report, to stdout. The exit code is 1 if a field or an object was refused, if
    anything can't be read, or if there is nothing to convert.
    """
    sources, wrong = _read(files)
    found = convert([source.value for source in sources])
    say_report = partial(say, error=not report)
    refused = False
    for conversion in found:
        source = sources[conversion.manifest]
        if conversion.notes is None:
            refused |= _left(source, say_report)
            continue
        for note in conversion.notes:
            say_report(_line(note, sources[note.manifest]))
        refused |= any(note.answer.outcome == "refused" for note in conversion.notes)
        if conversion.documents:
            counted = Counter(note.answer.outcome for note in conversion.notes)
            outcomes = ", ".join(f"{counted[outcome]} {outcome}" for outcome in ("kept", "dropped", "refused"))
            say_report(f"{source.place('')}: {_named(source)}: {outcomes}")
    if not wrong and not any(can_convert(source.value) for source in sources):
        say(f"{', '.join(files)}: there is no PyTorchJob, TrainJob or JobSet in it; give a file with one", error=True)
        return 1
    if not report:
        write(_text(found, sources, output))
    return 1 if refused or wrong else 0


def _read(files: Sequence[str]) -> tuple[list[_Source], bool]:
    """Returns the files' objects, and whether any file couldn't be read. Prints such errors."""
    sources, wrong = list[_Source](), False
    for file, documents in (each for named in files for each in documents_of(named)):
        wrong |= documents is None
        for document in documents or ():
            for mistake in document.mistakes:
                say(mistake.at(file), error=True)
            wrong |= bool(document.mistakes)
            found = (each for each in objects_of(document) if isinstance(each[1], Mapping))
            sources += [_Source(file, document, path, value) for path, value in found]
    return sources, wrong


def objects_of(document: Document) -> Iterator[tuple[str, Any]]:
    """Yields each object of a document with its path. `kubectl get -o yaml` prints a list, which contains several."""
    value = document.value
    kind, items = (value.get("kind"), value.get("items")) if isinstance(value, Mapping) else (None, None)
    if not (isinstance(kind, str) and kind.endswith("List") and isinstance(items, list)):
        yield "", value
        return
    # The items of a list of jobs may omit their type.
    types = {"apiVersion": value.get("apiVersion"), "kind": KIND} if kind == f"{KIND}List" else {}
    for position, item in enumerate(items):
        yield f"items[{position}]", {**types, **item} if isinstance(item, Mapping) else item


def _left(source: _Source, say_report: Callable[[str], None]) -> bool:
    """Reports that an object isn't converted, and returns whether it is another operator's job."""
    other, because = other_job(source.value), ""
    if other is not None:
        because = (
            ", because convert makes jobs of PyTorchJobs, TrainJobs and JobSets; "
            f"{_MIGRATING}#{other.section} lists its fields' names here"
        )
    say_report(f"{source.place('')}: {_named(source)} stays as it is{because}")
    return other is not None


def _line(note: Note, source: _Source) -> str:
    if not note.field and note.value is None:
        return f"{source.place('')}: refused: {note.answer.text}"
    field = dotted(note.field)
    given = f"{source.place(field)}: {field or note.value.get('kind')}"
    if field:
        given += f": {_shown(note.value)}"
    if note.answer.outcome != "kept":
        return one_line(f"{given}  {note.answer.outcome}: {note.answer.text}")
    became = []
    for name, value in note.became:
        shown = _shown(value)
        # A long value that is unchanged is shown only once.
        became.append(name if value == note.value and len(shown) > _SHOWN_TWICE else f"{name}: {shown}")
    remark = f"  ({note.answer.text})" if note.answer.text else ""
    return one_line(f"{given}  ->  {', '.join(became)}{remark}")


def _shown(value: Any) -> str:
    """Formats a value briefly. A text is quoted if it would otherwise look like a value of another type."""
    is_plain = isinstance(value, str) and value.strip() == value and plain_scalar(value) == value
    text = value if is_plain else json_line(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text):,} characters)"


def _named(source: _Source) -> str:
    metadata = mapping(source.value.get("metadata"))
    names = (source.value.get("kind"), metadata.get("name") or metadata.get("generateName"))
    return " ".join(map(str, filter(None, names)))


def _text(found: Sequence[Conversion], sources: Sequence[_Source], output: str) -> str:
    """Returns all documents as text. In YAML, a comment above each job names its source and the refused fields."""
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
        lines.append("Not converted:")
    lines += [f"  {dotted(note.field)}{': ' if note.field else ''}{note.answer.text}" for note in refused]
    return "".join(f"# {one_line(line)}\n" for line in lines)


def is_job(value: Any) -> bool:
    """Returns whether a document is meant as a job. A right kind or group suffices: the other may be misspelled."""
    if not isinstance(value, Mapping):
        return False
    kind, version = value.get("kind"), str(value.get("apiVersion") or "")
    if kind is None and version == "" and "spec" in value:
        # It may be an incomplete job.
        return True
    is_alike = isinstance(kind, str) and nearest(kind, [KIND], VERY_SIMILAR) is not None
    return is_alike or str(kind).lower() in (PLURAL, SINGULAR, SHORT_NAME) or version.split("/")[0] == GROUP


def mistake_of(value: Any) -> str | None:
    """Returns why a document that isn't meant as a job is a mistake, or None if it may accompany a job."""
    if not isinstance(value, Mapping):
        return "not an object; give a mapping with apiVersion and kind"
    kind, version = value.get("kind"), value.get("apiVersion")
    if kind == "List" or (isinstance(kind, str) and kind.endswith("List") and "items" in value):
        if isinstance(value.get("items"), list):
            return f"kubectl opens no {kind} in a list; move its items out of it"
        return "items: is not a list; give the objects one a line after '-'"
    for field, given, right in (("apiVersion", version, "v1"), ("kind", kind, "ConfigMap")):
        if given is not None and not isinstance(given, str):
            return f"{field}: is not text; write it in quotes"
        if not given and _JOBS_FIELDS & set(value):
            return f"{field}: is missing; set it, such as {right}"
    if not kind:
        return f"has neither apiVersion nor kind; a job begins with apiVersion: {API_VERSION} and kind: {KIND}"
    other = other_job(value)
    if other is not None:
        converted = f"{called()} convert converts it, and " if can_convert(value) else ""
        return (
            f"{kind} is a job of {other.owner}, which Trainmaster doesn't run; {converted}{_MIGRATING}#{other.section} "
            "lists its fields' names here"
        )
    return None


def other_job(value: Mapping[str, Any]) -> OtherJob | None:
    kind, version = str(value.get("kind")), str(value.get("apiVersion"))
    return next((job for job in OTHER_JOBS if version.startswith(job.group) and job.kind in ("", kind)), None)

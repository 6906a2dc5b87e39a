"""`trainmaster validate` and `trainmaster render` check and render jobs in files, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trainmaster.api.parsing import InvalidJob, ParsedJob, parse_job
from trainmaster.api.printable import UNSAFE, json_text, yaml_escapes
from trainmaster.api.v1alpha1 import GROUP, KIND
from trainmaster.cli.documents import Document, UnreadableFile, place, read_documents
from trainmaster.cli.terminal import say, write
from trainmaster.rendering import JobIdentity, Manifest, Settings, first_assignment, render

# Stands for the uid that the API server will give.
UNKNOWN_UID = "00000000-0000-0000-0000-000000000000"


def validate_files(files: Sequence[str]) -> int:
    """Checks every job, prints what is wrong, and returns the exit code: 1 when anything is."""
    wrong = False
    for source in files:
        for document, job in _jobs(source):
            if job is None:
                wrong = True
            elif document is not None:
                say(f"{source}: {KIND} {job.name} is valid")
    return 1 if wrong else 0


def render_files(
    files: Sequence[str], output: str, directory: Path | None, namespace: str, agent_image: str | None
) -> int:
    """Renders every job's children to stdout or into a folder, and returns the exit code."""
    settings = Settings() if agent_image is None else Settings(agent_image=agent_image)
    manifests: list[Manifest] = []
    wrong = False
    for source in files:
        for _, job in _jobs(source):
            if job is None:
                wrong = True
                continue
            identity = JobIdentity(job.namespace or namespace, job.name, UNKNOWN_UID)
            manifests += render(identity, job.spec, first_assignment(identity, job.spec), settings=settings)
    if directory is None:
        write(_text([manifest.body for manifest in manifests], output))
        return 1 if wrong else 0
    try:
        _write(manifests, directory, output)
    except OSError as error:
        say(f"{error.filename}: {error.strerror}; name a folder that can be written", error=True)
        return 1
    return 1 if wrong else 0


def _write(manifests: Sequence[Manifest], directory: Path, output: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for manifest in manifests:
        path = directory / f"{manifest.name}.{manifest.kind.lower()}.{output}"
        path.write_text(_text([manifest.body], output), encoding="utf-8")
        say(f"wrote {path}", error=True)


def _jobs(source: str) -> Iterator[tuple[Document | None, ParsedJob | None]]:
    """Yields the jobs of a file, and None for each one that is wrong and reported on stderr.

    Documents of other kinds are named and skipped.
    """
    try:
        documents = read_documents(source)
    except UnreadableFile as error:
        say(str(error), error=True)
        yield None, None
        return
    if not documents:
        say(f"{source}: there is no document in it; give a file with a {KIND}", error=True)
        yield None, None
    for document in documents:
        value = document.value
        if not isinstance(value, Mapping):
            say(f"{place(source, document.node)}: not an object; give a mapping with apiVersion and kind", error=True)
            yield document, None
        elif not _is_ours(value):
            name = f"{value.get('kind', 'no kind')} in {value.get('apiVersion', 'no apiVersion')}"
            say(f"{source}: skipped document {document.position} ({name})", error=True)
        else:
            yield document, _parse(document, value)


def _is_ours(value: Mapping[str, Any]) -> bool:
    """Returns whether it is a job: either half is enough, so that a misspelt one is reported and not skipped."""
    return value.get("kind") == KIND or str(value.get("apiVersion", "")).startswith(f"{GROUP}/")


def _parse(document: Document, value: Mapping[str, Any]) -> ParsedJob | None:
    lines = [f"{place(document.source, node)}: {field}: is given twice; keep one" for field, node in document.repeated]
    job = None
    try:
        job = parse_job(value)
    except InvalidJob as error:
        lines += [f"{document.place(problem.field)}: {problem}" for problem in error.problems]
    for line in sorted(lines, key=lambda line: _position(document, line)):
        say(line, error=True)
    return None if lines else job


def _position(document: Document, line: str) -> tuple[int, int]:
    """Returns the line and the column that a reported problem names."""
    number, column, _ = line.removeprefix(f"{document.source}:").split(":", 2)
    return int(number), int(column)


def _text(objects: list[Mapping[str, Any]], output: str) -> str:
    if output == "json":
        return "".join(json_text(body) + "\n" for body in objects)
    documents = [dict(body) for body in objects]
    return yaml_escapes(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True))


class _Dumper(yaml.SafeDumper):
    """The dumper double-quotes strings that hold control characters, because YAML knows escapes only there."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if UNSAFE.search(text) else None)


_Dumper.add_representer(str, _represent_text)

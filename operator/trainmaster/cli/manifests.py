"""`trainmaster validate` and `trainmaster render`: jobs in files, without a cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
import yaml

from trainmaster.api.parsing import InvalidJob, ParsedJob, parse_job
from trainmaster.api.v1alpha1 import GROUP, KIND
from trainmaster.cli.documents import Document, UnreadableFile, place, read_documents
from trainmaster.rendering import JobIdentity, Manifest, Settings, first_assignment, render

# Stands for the uid that the API server will give.
UNKNOWN_UID = "00000000-0000-0000-0000-000000000000"


def validate_files(files: Sequence[str]) -> int:
    """Check every job and say what is wrong; the exit code, 1 when anything is."""
    wrong = False
    for source in files:
        for document, job in _jobs(source):
            if job is None:
                wrong = True
            elif document is not None:
                typer.echo(f"{source}: {KIND} {job.name} is valid")
    return 1 if wrong else 0


def render_files(
    files: Sequence[str], output: str, directory: Path | None, namespace: str, agent_image: str | None
) -> int:
    """Render every job's children to stdout or into a folder; the exit code."""
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
        sys.stdout.write(_text([manifest.body for manifest in manifests], output))
        return 1 if wrong else 0
    try:
        _write(manifests, directory, output)
    except OSError as error:
        typer.echo(f"{error.filename}: {error.strerror}; name a folder that can be written", err=True)
        return 1
    return 1 if wrong else 0


def _write(manifests: Sequence[Manifest], directory: Path, output: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for manifest in manifests:
        path = directory / f"{manifest.name}.{manifest.kind.lower()}.{output}"
        path.write_text(_text([manifest.body], output), encoding="utf-8")
        typer.echo(f"wrote {path}", err=True)


def _jobs(source: str) -> Iterator[tuple[Document | None, ParsedJob | None]]:
    """The jobs of a file. What is wrong is told on stderr, and None stands for it; other documents are named and
    skipped."""
    try:
        documents = read_documents(source)
    except UnreadableFile as error:
        typer.echo(str(error), err=True)
        yield None, None
        return
    if not documents:
        typer.echo(f"{source}: there is no document in it; give a file with a {KIND}", err=True)
        yield None, None
    for document in documents:
        value = document.value
        if not isinstance(value, Mapping):
            typer.echo(
                f"{place(source, document.node)}: not an object; give a mapping with apiVersion and kind", err=True
            )
            yield document, None
        elif not _is_ours(value):
            name = f"{value.get('kind', 'no kind')} in {value.get('apiVersion', 'no apiVersion')}"
            typer.echo(f"{source}: skipped document {document.position} ({name})", err=True)
        else:
            yield document, _parse(document, value)


def _is_ours(value: Mapping[str, Any]) -> bool:
    """Either half is enough, so that a misspelt one is told and not skipped."""
    return value.get("kind") == KIND or str(value.get("apiVersion", "")).startswith(f"{GROUP}/")


def _parse(document: Document, value: Mapping[str, Any]) -> ParsedJob | None:
    lines = [f"{place(document.source, node)}: {field}: is given twice; keep one" for field, node in document.repeated]
    job = None
    try:
        job = parse_job(value)
    except InvalidJob as error:
        lines += [f"{document.place(problem.field)}: {problem}" for problem in error.problems]
    for line in sorted(lines, key=lambda line: _position(document, line)):
        typer.echo(line, err=True)
    return None if lines else job


def _position(document: Document, line: str) -> tuple[int, int]:
    """Where in the file a line is about."""
    number, column, _ = line.removeprefix(f"{document.source}:").split(":", 2)
    return int(number), int(column)


def _text(objects: list[Mapping[str, Any]], output: str) -> str:
    if output == "json":
        return "".join(json.dumps(body, indent=2, ensure_ascii=False) + "\n" for body in objects)
    return yaml.safe_dump_all([dict(body) for body in objects], sort_keys=False, width=120, allow_unicode=True)

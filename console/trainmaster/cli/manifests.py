"""`trainmaster validate`, `render` and `init` check, render and write jobs in files, without a cluster."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

import jinja2

from trainmaster.cli.convert import is_job, mistake_of, objects_of, other_job
from trainmaster.cli.documents import Document, documents_of
from trainmaster.cli.output import write_files
from trainmaster.cli.submission import require_valid
from trainmaster.cli.terminal import say, write
from trainmaster.cli.yaml_values import Mistake, yaml_text
from trainmaster.client.errors import ClientError
from trainmaster_operator.agent.build import zipapp_bytes
from trainmaster_operator.api.parsing import InvalidJob, ParsedJob, parse_job
from trainmaster_operator.api.printable import json_text
from trainmaster_operator.api.v1alpha1 import API_VERSION, KIND, JobIdentity
from trainmaster_operator.api.values import show
from trainmaster_operator.rendering import AgentConfigMap, Manifest, Settings, first_assignment, render
from trainmaster_operator.rendering.agent_source import config_map_name
from trainmaster_operator.wire.values import mapping

_STARTERS = ("job.yaml", "train.py")
# A placeholder for the uid that the API server will assign.
UNKNOWN_UID = "00000000-0000-0000-0000-000000000000"


def validate_files(files: Sequence[str]) -> int:
    """Checks every job, prints all mistakes, and returns the exit code, which is 1 if there are mistakes."""
    wrong = False
    for file, job in chain.from_iterable(map(_jobs, files)):
        if job is None:
            wrong = True
        else:
            say(f"{file}: {KIND} {job.name} is valid")
    return 1 if wrong else 0


def render_files(
    files: Sequence[str], output: str, directory: Path | None, namespace: str, *, force: bool = False
) -> int:
    """Renders every job's objects to stdout or into a folder, and returns the exit code. Raises ClientError.

    Unless `force` is set, nothing is written if a file exists with different content.
    """
    settings = Settings(agent=AgentConfigMap(config_map_name(zipapp_bytes())))
    manifests: list[Manifest] = []
    wrong = False
    for _, job in chain.from_iterable(map(_jobs, files)):
        if job is None:
            wrong = True
        else:
            identity = JobIdentity(job.namespace or namespace, job.name, UNKNOWN_UID)
            manifests += render(identity, job.spec, first_assignment(identity, job.spec), settings=settings)
    if directory is None:
        write(_text([manifest.body for manifest in manifests], output))
    else:
        _write(manifests, directory, output, force=force)
    return 1 if wrong else 0


def _write(manifests: Sequence[Manifest], directory: Path, output: str, *, force: bool) -> None:
    texts: dict[Path, bytes] = {}
    for manifest in manifests:
        path = directory / f"{manifest.name}.{manifest.kind.lower()}.{output}"
        if path in texts:
            raise ClientError(f"two jobs have a child in {path}; render each into a folder of its own")
        texts[path] = _text([manifest.body], output).encode()
    write_files(texts, force=force)
    for path in texts:
        say(f"wrote {path}", error=True)


def _jobs(source: str) -> Iterator[tuple[str, ParsedJob | None]]:
    """Yields each job of a file or a folder with its file's name. Prints mistakes, and yields None for a wrong job."""
    found, missing = False, "document"
    for file, documents in documents_of(source):
        if documents is None:
            found = True
            yield file, None
            continue
        if documents:
            missing = KIND
        for job in _jobs_of(file, documents):
            found = True
            yield file, job
    if not found:
        say(f"{source}: there is no {missing} in it; give a file with a {KIND}", error=True)
        yield source, None


def _jobs_of(file: str, documents: Sequence[Document]) -> Iterator[ParsedJob | None]:
    """Yields the jobs of one file, and None for each wrong document.

    Other objects are named and skipped. Another operator's job is skipped only in a file that also contains a job of
    ours; otherwise it is a mistake.
    """
    objects = [
        (position, document, path, value)
        for position, document in enumerate(documents, 1)
        for path, value in objects_of(document)
    ]
    names: set[tuple[str, str]] = set()
    has_job = any(is_job(value) for _, _, _, value in objects)
    for position, document, path, value in objects:
        job, mistakes = None, list(document.mistakes)
        if document.value is not None and is_job(value):
            job, problems = _parsed(value, names)
            mistakes += [Mistake(*document.place(f"{path}.{field}".lstrip(".")), text) for field, text in problems]
        elif document.value is not None:
            problem = mistake_of(value)
            if problem is None or (has_job and isinstance(value, Mapping) and other_job(value)):
                say(f"{file}: skipped document {position} ({value['kind']} in {value['apiVersion']})", error=True)
                continue
            mistakes = [Mistake(*document.place(path), problem)]
        for mistake in sorted(mistakes, key=lambda each: (each.line, each.column)):
            say(mistake.at(file), error=True)
        yield None if mistakes else job


def _parsed(value: Mapping[str, Any], names: set[tuple[str, str]]) -> tuple[ParsedJob | None, list[tuple[str, str]]]:
    """Returns the job, or None and the problems with their fields. Adds the job's name to `names`, the file's names."""
    try:
        job = parse_job(value)
    except InvalidJob as error:
        return None, [(each.field, str(each)) for each in error.problems]
    name = (job.namespace, job.name)
    if name in names:
        message = f"metadata.name: {show(job.name)} is the name of another job in this file; give it its own"
        return None, [("metadata.name", message)]
    if mapping(value["metadata"]).get("name"):
        names.add(name)
    return job, []


def _text(objects: list[Mapping[str, Any]], output: str) -> str:
    if output == "json":
        return "".join(json_text(body) + "\n" for body in objects)
    return yaml_text([dict(body) for body in objects])


@dataclass(frozen=True)
class Project:
    """Project contains the values that are filled into a new job's files."""

    name: str
    workers: int
    gpus: int
    image: str

    def text(self, file: str) -> str:
        template = files("trainmaster.cli").joinpath("starters", f"{file}.j2").read_text(encoding="utf-8")
        made = jinja2.Template(template, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
        return str(made.render(vars(self)))


def write_project(directory: Path, project: Project, *, force: bool) -> None:
    """Writes a new job's files, and prints the next steps. Raises ClientError."""
    # Checks the values by the same rules as a manifest, so that the error messages are the same.
    values = {"image": project.image, "workers": project.workers, "command": ["python"]}
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": project.name}}
    require_valid({**body, "spec": {**values, "resources": {"gpus": project.gpus}}})
    write_files({directory / file: project.text(file).encode() for file in _STARTERS}, force=force)
    for file in _STARTERS:
        say(f"wrote {directory / file}")
    say("")
    say("Next, at a cluster that has Trainmaster:")
    say(f"  kubectl dtj submit {shlex.quote(str(directory / _STARTERS[0]))} --code {shlex.quote(str(directory))}")
    say(f"  kubectl dtj status --watch {project.name}")

"""`trainmaster init` writes a job and its script, which train as they are and are there to be changed."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import jinja2

from trainmaster.cli.new_files import require_room, write_file
from trainmaster.cli.terminal import say
from trainmaster.client.errors import ClientError
from trainmaster_operator.api.parsing import InvalidJob, parse_job

_FILES = ("job.yaml", "train.py")


@dataclass(frozen=True)
class Project:
    """Project is what the files say of the job."""

    name: str
    workers: int
    gpus: int
    image: str

    def text(self, file: str) -> str:
        """Returns the text of one of the files."""
        template = files("trainmaster.cli").joinpath("starters", f"{file}.j2").read_text(encoding="utf-8")
        values = {"name": self.name, "workers": self.workers, "gpus": self.gpus, "image": self.image}
        text: str = jinja2.Template(template, undefined=jinja2.StrictUndefined, keep_trailing_newline=True).render(
            values
        )
        return text


def write_project(directory: Path, project: Project, *, force: bool) -> int:
    """Writes the files, says what to do next, and returns the exit code: 1 where nothing was written."""
    # The same sentences as for a file, before there is one.
    values = {"image": project.image, "workers": project.workers, "command": ["python"]}
    body = {"apiVersion": "trainmaster.dev/v1alpha1", "kind": "DistributedTrainingJob"}
    try:
        parse_job({**body, "metadata": {"name": project.name}, "spec": {**values, "resources": {"gpus": project.gpus}}})
    except InvalidJob as error:
        for problem in error.problems:
            say(f"error: {problem}", error=True)
        return 1
    try:
        for file in _FILES:
            require_room(directory / file, force=force)
        directory.mkdir(parents=True, exist_ok=True)
        for file in _FILES:
            write_file(directory / file, project.text(file).encode())
            say(f"wrote {directory / file}")
    except ClientError as error:
        say(f"error: {error}", error=True)
        return 1
    except OSError as error:
        say(f"error: {error.filename}: {error.strerror}; name a folder that can be written", error=True)
        return 1
    say("")
    say("Next, at a cluster that has Trainmaster:")
    say(f"  kubectl dtj submit {shlex.quote(str(directory / _FILES[0]))} --code {shlex.quote(str(directory))}")
    say(f"  kubectl dtj status --watch {project.name}")
    return 0

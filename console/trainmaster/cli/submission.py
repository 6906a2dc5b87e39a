"""Makes the job to submit from a manifest or from flags."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from trainmaster.cli.convert import is_job
from trainmaster.cli.documents import read_documents
from trainmaster.client.code import Archive
from trainmaster.client.errors import InvalidRequest
from trainmaster_operator.api.parsing import InvalidJob, parse_job
from trainmaster_operator.api.v1alpha1 import API_VERSION, KIND
from trainmaster_operator.api.values import show

SEPARATOR = "--"
_MANIFESTS = (".yaml", ".yml", ".json")
_LONGEST_STEM = 30


@dataclass(frozen=True)
class Flags:
    """Flags are the command line's options for a job. `words` are the words after `--`."""

    name: str | None
    image: str | None
    workers: int | None
    gpus: int | None
    script: str | None
    words: tuple[str, ...]
    progress_pattern: str | None = None
    progress_preset: str | None = None

    @property
    def progress(self) -> dict[str, str] | None:
        """Returns `spec.progress`; None if no flag sets it."""
        given = {"pattern": self.progress_pattern, "preset": self.progress_preset}
        return {field: value for field, value in given.items() if value is not None} or None


def split_words(words: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Returns the manifest's path (before `--`), and the words after `--`. Raises BadParameter for other words."""
    at = words.index(SEPARATOR) if SEPARATOR in words else len(words)
    before, behind = words[:at], tuple(words[at + 1 :])
    for word in before:
        if word == "-" or word.endswith(_MANIFESTS):
            continue
        remedy = "give the job's name by --name, and each worker's command after --"
        if word.endswith(".py"):
            remedy = f"give a script by --script {word}"
        raise typer.BadParameter(f"{show(word)} is no manifest (.yaml, .yml or .json); {remedy}", param_hint="FILE")
    if len(before) > 1:
        raise typer.BadParameter(f"one manifest is submitted at a time, not {len(before)}", param_hint="FILE")
    return (before[0] if before else None), behind


def manifest_from_file(file: str, flags: Flags) -> dict[str, Any]:
    """Returns the only job in a file, renamed if the flags contain a name. Raises InvalidRequest and BadParameter."""
    if flags.words:
        raise typer.BadParameter(f"a command stands behind -- beside the manifest {file}; write it there")
    for option in ("image", "workers", "gpus", "script", "progress-pattern", "progress-preset"):
        if getattr(flags, option.replace("-", "_")) is not None:
            raise typer.BadParameter(f"stands beside the manifest {file}; write it there", param_hint=f"--{option}")
    documents = read_documents(file)
    found = [document.value for document in documents if is_job(document.value)]
    if len(found) != 1:
        raise InvalidRequest(
            f"{file}: there are {len(found)} {KIND}s in it, and one is submitted at a time; give a file with one"
        )
    manifest = {**found[0], "metadata": dict(found[0].get("metadata") or {})}
    if flags.name is not None:
        manifest["metadata"]["name"] = flags.name
    return manifest


def manifest_from_flags(flags: Flags, code: Path | None, archive: Archive | None) -> dict[str, Any]:
    """Returns a job made from flags. Raises BadParameter if a required flag is missing."""
    if flags.script is None and not flags.words and flags.image is None:
        raise typer.BadParameter("give a manifest, --script, or a command after --", param_hint="FILE")
    program = [] if flags.script is None else ["python", _script(flags, code, archive)]
    given = {
        "workers": 1 if flags.workers is None else flags.workers,
        "image": flags.image,
        "command": [*program, *flags.words] or None,
        "resources": None if flags.gpus is None else {"gpus": flags.gpus},
        "progress": flags.progress,
    }
    spec = {field: value for field, value in given.items() if value is not None}
    name = flags.name or _generated_name(flags)
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}


def require_valid(manifest: Mapping[str, Any]) -> None:
    """Checks a job as `validate` does. Raises InvalidRequest with all problems."""
    try:
        parse_job(manifest)
    except InvalidJob as error:
        raise InvalidRequest("\n".join(map(str, error.problems))) from error


def _script(flags: Flags, code: Path | None, archive: Archive | None) -> str:
    """Returns the script's path relative to the workers' starting folder."""
    script = flags.script or ""
    if archive is None or code is None:
        if flags.image is None:
            raise typer.BadParameter(
                f"{script} is not in the bundled image; add --code DIR, the folder that it is in, or --image",
                param_hint="--script",
            )
        return script
    if script in archive.sizes:
        return script
    path, root = Path(script).resolve(), code.resolve()
    inside = path.relative_to(root).as_posix() if path.is_relative_to(root) else ""
    if inside in archive.sizes:
        return inside
    ignored = ", where .gitignore or .trainmasterignore leaves it out" if (code / script).exists() else ""
    raise typer.BadParameter(f"{script} is not in the code of {code}{ignored}", param_hint="--script")


def _generated_name(flags: Flags) -> str:
    words = [flags.script] if flags.script else [word for word in flags.words if word and not word.startswith("-")]
    stem = Path(next((word for word in words if word.endswith(".py")), words[-1] if words else "job")).stem
    plain = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:_LONGEST_STEM]
    plain = plain if plain[:1].isalpha() else f"job-{plain}".strip("-")
    return f"{plain}-{secrets.token_hex(3)}"

"""`submit` creates a job from a manifest or from flags, and can upload its code; `push` replaces the code of a job."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.arguments import JobName, duration_option, find_job
from trainmaster.cli.connection import Connection, connected, path_argument, path_option
from trainmaster.cli.output import ObjectOutput, object_name, print_value
from trainmaster.cli.program import Command, Part
from trainmaster.cli.terminal import called, say
from trainmaster_operator.wire.log_rules import PRESETS

if TYPE_CHECKING:
    from trainmaster.client import TrainingJob

app = Part()


class _Submit(Command):
    """_Submit keeps the `--` among its arguments, which click would remove."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        return super().parse_args(ctx, [*args[:at], *args[at : at + 1], *args[at:]])


@app.command("submit", cls=_Submit)
@connected
def submit(
    connection: Connection,
    words: Annotated[
        list[str] | None,
        path_argument(metavar="[FILE | -- COMMAND...]", help="Manifest, or what each worker runs.", show_default=False),
    ] = None,
    filename: Annotated[str | None, path_option("--filename", "-f", help="Manifest.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the job; default: the script's name and a few letters.")
    ] = None,
    image: Annotated[str | None, typer.Option(help="Image of the workers; default: the bundled one.")] = None,
    workers: Annotated[int | None, typer.Option(help="Number of workers; default: 1.")] = None,
    gpus: Annotated[int | None, typer.Option(help="Accelerators of each worker.")] = None,
    script: Annotated[str | None, typer.Option(help="Python script to run; its arguments follow --.")] = None,
    code: Annotated[
        Path | None, path_option(metavar="DIR", help="Folder of code to upload; the workers start in it.")
    ] = None,
    progress_pattern: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help=r"Lines that show progress, such as 'it (?P<step>\d+) loss (?P<loss>\S+)'."),
    ] = None,
    progress_preset: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(PRESETS),
            help="Framework whose lines show progress; default: auto.",
            autocompletion=lambda: list(PRESETS),
        ),
    ] = None,
    code_claim: Annotated[
        str | None, typer.Option(metavar="NAME", help="PersistentVolumeClaim for code of more than 700 KB.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job has ended.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the manifest, but send nothing.")] = False,
    output: ObjectOutput = None,
) -> None:
    """Create a job from a manifest or from flags.

    --code uploads a folder's code, so the job needs no image of its own. Secrets and what .gitignore and
    .trainmasterignore exclude are left out, and named.
    """
    from trainmaster.cli.health import wait_for
    from trainmaster.cli.submission import Flags, manifest_from_file, manifest_from_flags, require_valid, split_words
    from trainmaster.client.code import archive_folder, submit_with_code
    from trainmaster.client.code.submitting import with_code
    from trainmaster.client.view import view_of

    file, command = split_words(words or ())
    if file is not None and filename is not None:
        raise typer.BadParameter(f"stands beside the manifest {file}; leave one of them out", param_hint="--filename")
    file = filename or file
    flags = Flags(name, image, workers, gpus, script, command, progress_pattern, progress_preset)
    archive = None if code is None else archive_folder(code)
    manifest = manifest_from_file(file, flags) if file is not None else manifest_from_flags(flags, code, archive)
    complete = manifest if archive is None else with_code(manifest, archive, code_claim)
    require_valid(complete)
    if archive is not None:
        say(f"code: {archive.summary()}", error=True)
    if dry_run:
        print_value(complete, output or "yaml")
        return
    if connection.namespace is None and manifest["metadata"].get("namespace"):
        connection = replace(connection, namespace=manifest["metadata"]["namespace"])
    jobs = connection.client()
    job = jobs.submit(complete) if archive is None else submit_with_code(jobs, manifest, archive, claim=code_claim)
    if output is not None:
        print_value(dict(job.raw), output)
    else:
        say(f"{object_name(job.name)} created")
    where = f" -n {jobs.namespace}" if connection.namespace is not None else ""
    say(f"{called()} logs -f{where} {job.name} shows its output", error=True)
    if archive is not None:
        say(f"{called()} push{where} {job.name} {quote(str(code))} uploads new code", error=True)
    if wait:
        ended = wait_for(jobs, job, lambda each: each.finished)
        say(view_of(ended.raw).outcome)
        if ended.phase != "Succeeded":
            raise typer.Exit(1)


@app.command("push")
@connected
def push(
    connection: Connection,
    name: JobName,
    folder: Annotated[Path, path_argument(metavar="DIR", help="Folder of the code.")],
    wait: Annotated[bool, typer.Option(help="Wait until the ranks run the new code.")] = True,
    timeout: Annotated[float, duration_option()] = "10m",  # type: ignore[assignment]
) -> None:
    """Upload new code into a job that was submitted with --code.

    Its ranks save a checkpoint and restart with the new code in the same pods; this doesn't count against maxRestarts.
    DIR replaces all of the job's code. A folder without the job's script is refused.
    """
    from trainmaster.client.code import archive_folder, push_code
    from trainmaster.client.code.archive import size_text
    from trainmaster.client.view import view_of

    jobs = connection.client()
    began = time.monotonic()
    archive = archive_folder(folder)
    if archive.left_out:
        say(archive.left(), error=True)
    find_job(jobs, name)
    pushed = push_code(jobs, name, archive)
    files = "1 file" if len(archive.sizes) == 1 else f"{len(archive.sizes)} files"
    code = f"{archive.digest[:12]} ({files}, {size_text(len(archive.data))})"
    if not pushed.changed:
        say(f"{name}: already has this code, {code}")
        return
    say(f"{name}: new code {code}")
    if pushed.job.to_be_suspended:
        say(f"{name}: is suspended, and runs the new code when it is resumed")
        return
    if not wait:
        return

    def runs(job: TrainingJob) -> bool:
        return job.finished or (job.status.code_digest == archive.digest and job.phase == "Running")

    job = jobs.wait(name, until=runs, timeout=timeout)
    if job.finished:
        ran = job.status.code_digest == archive.digest
        say(view_of(job.raw).outcome + ("" if ran else "; the new code never ran"))
        if job.phase == "Failed" or not ran:
            raise typer.Exit(1)
        return
    say(
        f"{name}: running the new code in attempt {job.status.attempt}, {time.monotonic() - began:.1f} s after the push"
    )

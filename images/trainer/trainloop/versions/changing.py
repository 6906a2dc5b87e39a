"""Three commands write: `tag`, `export`, which writes a file of weights, and `prune`, which deletes checkpoints."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from trainloop.checkpoints import retention, storage
from trainloop.checkpoints.storage import verify
from trainloop.versions import output
from trainloop.versions.catalog import (
    COMPLETE,
    CommandError,
    UsageError,
    Version,
    checked,
    find,
    own_best,
    reserved,
    versions,
)

#: The reason for keeping a checkpoint that should have been deleted.
REFUSED = "it can't be deleted"


def tag(options: argparse.Namespace) -> int:
    directory, name = options.directory, options.name
    if options.delete:
        if options.checkpoint is None or name is not None:
            raise UsageError("--delete takes the directory and one tag: trainloop checkpoints tag --delete DIR TAG")
        before = storage.tags(directory).get(options.checkpoint)
        storage.delete_tag(directory, options.checkpoint)
        print(f"deleted tag {options.checkpoint} (was of {before})")
        return 0
    found = versions(directory)
    if options.checkpoint is None:
        output.lines(output.table(("TAG", "CHECKPOINT"), sorted(storage.tags(directory).items())))
        return 0
    if name is None:
        raise UsageError("the tag is missing: trainloop checkpoints tag DIR CHECKPOINT TAG")
    version = find(directory, options.checkpoint, found)
    checked(version)
    if reserved(name):
        raise CommandError(f"{name!r} can't be a tag: it is another way to name a checkpoint")
    before = storage.tags(directory).get(name)
    if before not in (None, version.name) and not options.force:
        raise CommandError(f"{name} is a tag of {before} already: --force moves it")
    storage.set_tag(version.checkpoint, name)
    if not version.path.is_dir():  # the run may have deleted it just before
        storage.delete_tag(directory, name)
        raise CommandError(f"{version.name} was deleted just now: it has no tag")
    print(f"{version.name} is tagged {name}: it stays until the tag is deleted")
    return 0


def export(options: argparse.Namespace) -> int:
    file: Path = options.file
    if not file.parent.is_dir():
        raise CommandError(f"{file} can't be written: {file.parent} is no directory")
    if file.is_dir():
        raise CommandError(f"{file} can't be written: it is a directory, name a file in it")
    if file.exists() and not options.force:
        raise CommandError(f"{file} is there already: --force replaces it")
    version = find(options.directory, options.checkpoint)
    checked(version)
    import torch

    from trainloop.versions.tensors import Weights, write_weights

    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, None: None}
    about = {"checkpoint": version.name, "step": str(version.checkpoint.step)}
    done = write_weights(Weights(version.path), file, types[options.dtype], about)
    print(f"{file}: {done.tensors} tensors, {done.bytes:,} bytes ({output.size(done.bytes)}), of {version.name}")
    for name in done.infinite:
        output.say(f"{name} has numbers that {options.dtype} can't hold: they are infinite in {file}")
    return 0


def prune(options: argparse.Namespace) -> int:
    found = versions(options.directory)
    sound, damaged = _sound(found, options.keep)
    if not sound:
        raise CommandError(f"{options.directory} has no checkpoint that verifies: nothing is deleted")
    measured = options.best or own_best(found)
    best = find(options.directory, f"best:{measured}", found) if measured else None
    written, kept = sound[0].checkpoint, best.checkpoint if best else None
    doomed = retention.superseded(written, storage.survey(options.directory), options.keep, kept, damaged)
    outcome = []
    for version in found:
        tagged = version.name in storage.tags(options.directory).values()  # it may have got a tag just now
        why = _why_it_stays(version, sound, best) if tagged or version.checkpoint not in doomed else None
        if why is None and not options.dry_run and not _deleted(version):
            why = REFUSED if version.path.exists() else "deleted by another program"
        outcome.append((version, why))
    gone = [version for version, why in outcome if why is None]
    refused = int(any(why == REFUSED for _, why in outcome))
    if options.output == "json":
        plain = [
            {"name": version.name, "deleted": not why, "why": why, "bytes": version.bytes} for version, why in outcome
        ]
        print(output.document({"dryRun": options.dry_run, "checkpoints": plain}))
        return refused
    rows = [
        (version.name, "keep" if why else "delete", why or _why_it_goes(version, damaged), output.size(version.bytes))
        for version, why in outcome
    ]
    output.lines(output.table(("NAME", "ACTION", "WHY", "SIZE"), rows))
    verb = "would delete" if options.dry_run else "deleted"
    print(f"{verb} {len(gone)} of {len(found)} checkpoints, {output.size(sum(version.bytes for version in gone))}")
    return refused


def _deleted(version: Version) -> bool:
    """Deletes a checkpoint; returns whether this program deleted it."""
    try:
        return storage.remove(version.checkpoint)
    except OSError as error:
        output.say(f"{version.path} isn't deleted: {error.strerror}")
        return False


def _sound(found: Sequence[Version], most: int) -> tuple[list[Version], list[str]]:
    """Returns the newest checkpoints that verify (at most `most`), and the names of those that don't.

    Checkpoints older than the returned ones aren't verified.
    """
    sound, damaged = list[Version](), list[str]()
    for version in found:
        if len(sound) == most:
            break
        if version.state == COMPLETE and verify(version.path) is None:
            sound.append(version)
        else:
            damaged.append(version.name)
    return sound, damaged


def _why_it_stays(version: Version, sound: Sequence[Version], best: Version | None) -> str:
    """Returns why a checkpoint is kept."""
    place = "newest that verifies" if version == sound[0] else "among the newest" if version in sound else None
    label = f"tagged {', '.join(version.tags)}" if version.tags else None
    reasons = [place, "best result" if version == best else None, label]
    return ", ".join(filter(None, reasons)) or "damaged, but not older than all that are kept"


def _why_it_goes(version: Version, damaged: Sequence[str]) -> str:
    return "older, and damaged" if version.name in damaged or version.state != COMPLETE else "older"

"""Retention decides which checkpoints are kept, after each save and when the disk is full.

After a save, the last written checkpoints, the best one, and those with a tag are kept. If the disk is full, older
checkpoints are deleted to make room for the next one. If that isn't enough, a message gives the needed and the free
bytes.
"""

from __future__ import annotations

import errno
import math
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from trainloop.checkpoints import storage
from trainloop.checkpoints.storage import Checkpoint, Survey, named, remove, tags, verify


def best(newest_first: Sequence[Checkpoint], result: str | None, order: str) -> Checkpoint | None:
    """Returns the checkpoint with the best `result`, or the oldest of several equally good ones.

    `order` is max or min. A result of nan is ignored.
    """
    scored = [(one.results.get(result or "", math.nan), one) for one in reversed(newest_first)]
    sign = -1 if order == "min" else 1
    found = [(sign * value, one) for value, one in scored if isinstance(value, int | float) and not math.isnan(value)]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def prune(
    written: Checkpoint, found: Survey, keep: int, best: Checkpoint | None = None, broken: Collection[str] = ()
) -> None:
    """Delete the checkpoints that `superseded` returns."""
    for checkpoint in superseded(written, found, keep, best, broken):
        remove(checkpoint)


def superseded(
    written: Checkpoint, found: Survey, keep: int, best: Checkpoint | None = None, broken: Collection[str] = ()
) -> list[Checkpoint]:
    """Returns the checkpoints in `found` that needn't be kept.

    The `keep` newest ones, the `best` one, and those with a tag are kept. `written` counts as the newest, because only
    this checkpoint is known to be readable. Broken checkpoints, which `found` or `broken` names, don't count among the
    newest. They are superseded when there are `keep` newest ones, and each of those has a later step.
    """
    whole, damaged = found
    usable = [one for one in whole if one.name not in broken and one != written]
    window, older = [written, *usable[: keep - 1]], usable[keep - 1 :]
    odd = filter(None, (named(written.directory, name) for name in {*damaged, *broken}))
    past = [one for one in odd if len(window) == keep and one < min(window) and one.path.is_dir()]
    tagged = tags(written.directory).values()
    return [one for one in [*older, *past] if one != best and one.name not in tagged]


def make_room(directory: Path, error: BaseException, needed: int, parent: object = None) -> bool:
    """If `error` means a full disk, delete checkpoints to free `needed` bytes; returns whether any was deleted.

    Checkpoints with a tag are kept, and so is the run's `parent` or, if `parent` doesn't verify, the newest checkpoint
    that does. If no checkpoint verifies, or if deleting the others wouldn't free enough bytes, nothing is deleted.
    """
    cause = _cause(error)
    if not isinstance(cause, OSError) or cause.errno not in (errno.ENOSPC, errno.EDQUOT):
        return False
    whole, broken = storage.survey(directory)
    newest = next((one for one in sorted(whole, key=lambda one: one.name != parent) if verify(one.path) is None), None)
    if newest is None:
        return False
    named = (storage.named(directory, name) for name in broken)
    tagged = {newest.name, *storage.tags(directory).values()}
    doomed = [one for one in [*whole, *filter(None, named)] if one.name not in tagged and one.path.is_dir()]
    held = sum(file.stat().st_size for one in doomed for file in one.path.rglob("*") if file.is_file())
    if not storage.has_room(directory, needed - held):
        return False
    for checkpoint in filter(storage.remove, doomed):
        print(f"warning: the disk is full: {checkpoint.path} is deleted to make room", flush=True)
    return bool(doomed)


def refusal(directory: Path, step: int, error: BaseException, needed: int) -> str:
    """Returns the message about a checkpoint that couldn't be written."""
    return f"checkpoint of step {step} can't be written to {directory}: {lacking(directory, error, needed)}"


def lacking(directory: Path, error: BaseException, needed: int) -> str:
    """Returns a sentence that explains why `needed` bytes couldn't be written, and how many bytes are free."""
    cause = _cause(error)
    why = cause.strerror if isinstance(cause, OSError) else None
    try:
        room = f"{shutil.disk_usage(directory).free:,} bytes are free, {needed:,} and a little more are needed"
    except OSError as other:
        room = f"{needed:,} bytes are needed, how many are free can't be read: {other.strerror}"
    return f"{why or error}; {room}"


def _cause(error: BaseException) -> BaseException:
    """Returns the disk's error that caused `error`, or `error` itself if there is none.

    torch raises other errors because of a disk's error.
    """
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__context__
    return found or error

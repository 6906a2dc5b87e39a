"""The commands `list`, `show` and `verify` print a directory's content and never write to it."""

from __future__ import annotations

import argparse
from typing import Any

from trainloop.checkpoints import storage
from trainloop.checkpoints.storage import CheckpointError, inspect, verify
from trainloop.errors import TrainingError
from trainloop.versions import output
from trainloop.versions.catalog import COMPLETE, Version, find, lineage, versions


def list_(options: argparse.Namespace) -> int:
    found = versions(options.directory)
    if options.output == "json":
        print(output.document([version.fields() for version in found]))
        return 0
    rows = [
        (
            version.name,
            version.checkpoint.step,
            output.age(version.created),
            _known(version.attempt),
            _known(version.world_size),
            output.results(version.results, 2),
            output.size(version.bytes),
            ",".join(version.tags) or output.UNKNOWN,
            version.state,
        )
        for version in found
    ]
    header = ("NAME", "STEP", "AGE", "ATTEMPT", "RANKS", "RESULTS", "SIZE", "TAGS", "STATE")
    output.lines(output.table(header, rows))
    there = {version.name for version in found}
    for name, problem in storage.survey(options.directory)[1].items():
        if name not in there:  # for example `step-12`; the table shows the state of the other ones
            output.say(problem)
    for tag, name in sorted(storage.tags(options.directory).items()):
        if name not in there:
            output.say(f"tag {tag} is of {name}, which isn't there")
    return 0


def show(options: argparse.Namespace) -> int:
    found = versions(options.directory)
    version = find(options.directory, options.checkpoint, found)
    ancestors = [_ancestor(name, known, version.attempt) for name, known in lineage(version)]
    weights, problem = _position(version)
    if options.output == "json":
        about = {**version.fields(), "lineage": ancestors, "weights": weights, "problem": problem}
        print(output.document(about))
        return int(problem is not None)
    rows: list[tuple[str, object]] = [
        ("name", version.name),
        ("state", version.state),
        ("tags", ", ".join(version.tags) or output.UNKNOWN),
        ("created", f"{output.when(version.created)} ({output.age(version.created)} ago)" if version.created else "-"),
        ("parent", version.parent or output.UNKNOWN),
        ("lineage", " <- ".join(ancestors)),
        *([("started from", version.start_from)] if version.start_from else []),
        ("attempt", _known(version.attempt)),
        ("ranks", _known(version.world_size)),
        ("results", output.results(version.results)),
        ("code", version.code or output.UNKNOWN),
        ("configuration", version.configuration or output.UNKNOWN),
        *((name, value) for name, value in weights.items()),
    ]
    width = max(len(name) for name, _ in rows) + 3
    output.lines(f"{output.plain(name):<{width}}{output.plain(value)}" for name, value in rows)
    files = [(name, output.size(entry["bytes"]), entry.get("sha256", "-")) for name, entry in version.files.items()]
    if files:
        output.lines(["", *output.table(("FILE", "SIZE", "SHA-256"), files)])
    if problem:
        output.say(problem)
    return int(problem is not None)


def verify_(options: argparse.Namespace) -> int:
    found = versions(options.directory)
    chosen = [find(options.directory, name, found) for name in options.checkpoints] or found
    outcome = {}
    for version in chosen:
        problem = verify(version.path)
        if problem is not None and not version.path.exists():
            problem, state = "it was deleted just now", "gone"
        else:
            state = "ok" if problem is None else "damaged"
        outcome[version.name] = {"state": state, "problem": problem}
        if options.output != "json":
            print(f"{version.name}   {state}   {output.plain(problem or output.size(version.bytes))}", flush=True)
    if options.output == "json":
        print(output.document(outcome))
    return int(any(each["state"] == "damaged" for each in outcome.values()))


def _position(version: Version) -> tuple[dict[str, Any], str | None]:
    """Returns a description of a checkpoint's weights and its run's position, and a problem with reading, or None."""
    try:
        inspect(version.path)
    except CheckpointError as error:
        return {}, f"{version.name} can't be used: {error}"
    if version.state != COMPLETE:
        return {}, f"{version.name} can't be used: {version.state}"
    from trainloop.versions.catalog import configuration, setting
    from trainloop.versions.tensors import Weights, type_name

    try:
        weights, settings = Weights(version.path), configuration(version)
    except (CheckpointError, TrainingError) as error:
        return {}, str(error)
    counts: dict[str, int] = {}
    for dtype, shape in map(weights.shape, weights):
        counts[type_name(dtype)] = counts.get(type_name(dtype), 0) + shape.numel()
    train = weights.state.get("train")
    train = train if isinstance(train, dict) else {}
    chosen = {path: setting(settings, *path.split(".")) for path in ("optimizer.name", "schedule.kind", "batch.size")}
    types = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
    position = {name: train.get(name, output.UNKNOWN) for name in ("step", "total", "updates", "position")}
    return {
        "format": "sharded" if weights.sharded else "full",
        "weights": f"{len(weights)} tensors: {types}",
        "position": "step {step} of {total}, {updates} updates, {position} samples".format(**position),
        "settings": ", ".join(f"{path} {value}" for path, value in chosen.items() if value is not None)
        or output.UNKNOWN,
    }, None


def _ancestor(name: str, version: Version | None, attempt: int | None) -> str:
    """Returns the text for one checkpoint of a lineage, with its attempt if that differs from `attempt`."""
    if version is None:
        return f"{name} ({'not there' if '/' in name else 'deleted'})"
    return name if version.attempt == attempt else f"{name} (attempt {_known(version.attempt)})"


def _known(value: object) -> object:
    return output.UNKNOWN if value is None else value

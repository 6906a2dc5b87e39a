"""`trainloop checkpoints` (`versions`) has a sentence for anything it finds in a directory, never a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainloop.__main__ import main
from trainloop.checkpoints import storage

NAMES = [
    "step-000000002.1",
    "step-000000007.3",
    "step-99999999999999999999.1",
    "step-1",
    "step-x",
    "tags",
    "ü\udc80",
    "a b",
]
FILES = ["manifest.json", "state.pt", "config.yaml", "shards", "shards/rank-00000.pt", "good", "x"]
COMMANDS = [
    ["list", "."],
    ["list", ".", "-o", "json"],
    ["show", ".", "latest"],
    ["show", ".", "2"],
    ["show", ".", "best", "-o", "json"],
    ["diff", ".", "2", "4"],
    ["diff", ".", "4", "latest", "--all"],
    ["diff", ".", "4", "2", "-o", "json"],
    ["verify", "."],
    ["export", ".", "2", "out.safetensors"],
    ["prune", ".", "--keep", "1", "--dry-run"],
    ["tag", "."],
    ["tag", ".", "2", "mine"],
    ["tag", "--delete", ".", "good"],
    ["prune", ".", "--keep", "1"],
]


def delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def break_something(folder: Path, draw: random.Random, document: Any) -> None:
    """Change one thing in the directory."""
    paths = [path for path in sorted(folder.rglob("*")) if not path.name.startswith(".")]
    files = [path for path in paths if path.is_file()]
    place = draw.choice([folder, *paths])

    def bytes_of_a_file() -> None:
        content = bytearray(draw.choice(files).read_bytes())
        for _ in range(draw.choice([1, 3, 50])):
            if content:
                content[draw.randrange(len(content))] = draw.randrange(256)
        draw.choice(files).write_bytes(content)

    def cut() -> None:
        file = draw.choice(files)
        os.truncate(file, draw.randrange(2 * file.stat().st_size + 1))

    def put(make: Callable[[Path], object]) -> None:
        path = (place if place.is_dir() else place.parent) / draw.choice(NAMES + FILES)
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path):
            delete(path)
        make(path)

    def sealed() -> None:
        """Make the manifest match the files, so that damage gets past it; its other values can be anything."""
        inner = draw.choice([path for path in folder.glob("step-*") if path.is_dir()] or [folder])
        (inner / "manifest.json").unlink(missing_ok=True)
        storage.write_manifest(inner, draw.choice([2, 4]), document)

    def manifest() -> None:
        body = (
            document if isinstance(document, dict) else {"format": 2, "step": 2, "about": document, "files": document}
        )
        digest = storage._digest_of_json(body)
        draw.choice(files).with_name("manifest.json").write_text(json.dumps({**body, "sha256": digest}))

    with contextlib.suppress(OSError, IndexError):
        draw.choice(
            [
                bytes_of_a_file,
                cut,
                sealed,
                sealed,
                manifest,
                lambda: delete(draw.choice(paths)),
                lambda: draw.choice(paths).rename(draw.choice(paths)),
                lambda: put(Path.touch),
                lambda: put(Path.mkdir),
                lambda: put(os.mkfifo),
                lambda: put(lambda path: path.symlink_to(draw.choice(["/nowhere", ".", "/dev/zero", "manifest.json"]))),
                lambda: put(lambda path: path.write_text(json.dumps(document))),
                lambda: put(lambda path: path.write_bytes(draw.randbytes(30))),
            ]
        )()


def anything(draw: random.Random, depth: int = 3) -> Any:
    """Returns any JSON value, or one that only Python's JSON has."""
    plain = [
        None,
        True,
        0,
        -1,
        2,
        1e308,
        float("nan"),
        float("inf"),
        10**30,
        "",
        "step-000000002.1",
        "\x1b[2J",
        "\udc80",
        "state.pt",
    ]
    kind = draw.randrange(4 if depth else 2)
    if kind == 2:
        return [anything(draw, depth - 1) for _ in range(draw.randrange(4))]
    if kind == 3:
        names = [
            "format",
            "step",
            "created",
            "about",
            "files",
            "parent",
            "attempt",
            "results",
            "sha256",
            "bytes",
            "../x",
        ]
        return {draw.choice(names): anything(draw, depth - 1) for _ in range(draw.randrange(6))}
    return draw.choice(plain)


def attempt(seed: int, runs: Path, kind: str, folder: Path) -> None:
    """Break a copy of a run's checkpoints at random, and run every command in it; it is the working directory."""
    draw = random.Random(seed)
    for step in (2, 4):
        shutil.copytree(runs / kind / f"step-{step:09d}.1", folder / f"step-{step:09d}.1")
    for _ in range(draw.randrange(1, 7)):
        break_something(folder, draw, anything(draw))
    for command in COMMANDS:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main(["checkpoints", *command])
        assert code in (0, 1), f"{command} ended with {code}"
        assert said.getvalue().strip(), f"{command} said nothing"


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["checkpoints", "sharded"])
def test_a_directory_of_anything_never_gives_a_traceback(
    kind: str, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(15):
        folder = tmp_path / str(seed)
        folder.mkdir()
        monkeypatch.chdir(folder)
        attempt(seed, runs, kind, folder)

"""Finds a page's code blocks by language and heading, and turns snippets of a spec into whole jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
OURS = "DistributedTrainingJob"
# A snippet of a spec is put into this spec.
_BASE = {"image": "registry.example.com/team/train:1.0", "command": ["python", "train.py"], "workers": 2}
_NUMBERS = re.compile(r"\d[\d,.]*(?:[dhm]\d+)*")
_HEADING = re.compile(r"^#{1,6} (.+)$")


@dataclass(frozen=True)
class Block:
    """Is one fenced code block of a page."""

    page: str
    heading: str
    language: str
    line: int
    text: str

    @property
    def name(self) -> str:
        """Returns the place that a test's name shows."""
        return f"{self.page}:{self.line}"

    def objects(self) -> list[dict[str, Any]]:
        """Returns the objects of a YAML block; a snippet of a spec becomes a whole job."""
        return [
            document if "kind" in document else _job(document) for document in yaml.safe_load_all(self.text) if document
        ]


def blocks(page: str, language: str) -> list[Block]:
    """Returns the blocks in a language on a page in docs/."""
    return [block for block in _blocks(page) if block.language == language]


def exchanges(block: Block) -> list[tuple[str, str]]:
    """Returns a block's commands, each with the output below it."""
    parts = re.split(r"^\$ (.+)\n", block.text, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def plain(text: str) -> str:
    """Returns the words of a text, without line breaks and numbers."""
    return " ".join(_NUMBERS.sub("0", text).split())


def pattern(shown: str) -> re.Pattern[str]:
    """Returns a pattern for output as a page shows it, where `…` matches any text."""
    return re.compile(re.sub(r"\s*…\s*", ".*", re.escape(plain(shown)).replace("\\ ", " ")), re.DOTALL)


def slugs(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    found = set()
    fenced = False
    for line in page.read_text().splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        match = None if fenced else _HEADING.match(line)
        if match:
            found.add(re.sub(r"[^\w\- ]", "", match.group(1).lower()).replace(" ", "-"))
    return found


def _blocks(page: str) -> Iterator[Block]:
    heading, language, start, lines = "", None, 0, []
    for number, line in enumerate((ROOT / "docs" / page).read_text().splitlines(), 1):
        if line.startswith("```"):
            if language is None:
                language, start, lines = line[3:], number, []
            else:
                yield Block(page, heading, language, start, "\n".join(lines) + "\n")
                language = None
        elif language is not None:
            lines.append(line)
        elif match := _HEADING.match(line):
            heading = match.group(1)


def _job(part: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": OURS,
        "metadata": {"name": "snippet"},
        "spec": {**_BASE, **part},
    }

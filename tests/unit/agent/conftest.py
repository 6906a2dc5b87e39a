"""A job of real agents for the tests of this folder."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .agents import Job

_numbers = itertools.count(1)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job on a network of its own within 127.0.0.0/8, apart from other test processes' and other tests'."""
    number = os.getpid() % 60_000
    made = Job(tmp_path, f"127.{128 + number // 500}.{number % 250 + next(_numbers) % 5}")
    yield made
    made.end()

"""A job of real agents for the tests of this folder."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from .agents import Job

CLAIM_PORT = 8471


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job on a network of its own within 127.128.0.0/9, held by a socket against other test processes' tests."""
    while True:
        network = f"127.{random.randrange(128, 256)}.{random.randrange(256)}"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as claim:
            try:
                claim.bind((f"{network}.254", CLAIM_PORT))
            except OSError:
                continue
            made = Job(tmp_path, network)
            yield made
            made.end()
            return

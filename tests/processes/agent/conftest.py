"""The tests of this folder share a job of real agents."""

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
    """Makes a job on its own network within 127.128.0.0/9; a socket reserves it against tests in other processes."""
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

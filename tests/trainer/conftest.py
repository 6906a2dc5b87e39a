"""What the tests of the training loop share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _reports() -> Iterator[None]:
    """A place for the metrics of runs whose test doesn't look at them; in the environment, which ranks inherit."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRAINLOOP_TEST_REPORTS"] = folder
        yield

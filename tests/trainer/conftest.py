"""The tests of the training loop share one place for their runs' metrics."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

from tests.trainer.saved_runs import checkpoints, runs, saved

__all__ = ["checkpoints", "runs", "saved"]


@pytest.fixture(scope="session", autouse=True)
def _reports() -> Iterator[None]:
    """Makes a place for the metrics of runs whose tests don't read them; ranks inherit its name."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRAINLOOP_TEST_REPORTS"] = folder
        yield

"""Tests of this folder have the marker `gpu`, and are skipped if there is no CUDA device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    missing = bool(here) and not torch.cuda.is_available()
    for item in here:
        item.add_marker("gpu")
        if missing:
            item.add_marker(
                pytest.mark.skip(reason="there is no CUDA device here (make test-gpu, on a machine with one)")
            )

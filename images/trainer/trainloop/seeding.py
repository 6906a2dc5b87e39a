"""Random numbers are seeded separately for each purpose and rank; the checkpoint stores the generators' state."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from pydantic import Field

from trainloop.recovery import generators
from trainloop.settings import Settings

#: Purposes of a seed: the model (the same on every rank), a rank's own numbers, and the data order of an epoch.
MODEL, RANK, ORDER = 1, 2, 3


class SeedSettings(Settings):
    """These settings choose the seed of all random numbers, and whether kernels must be deterministic."""

    value: int = Field(0, ge=0, lt=2**32, description="Everything random follows from it.")
    deterministic: bool = Field(False, description="Only deterministic kernels; some are slower, some ops are refused.")


def seed_all(value: int, *purpose: int) -> None:
    """Seeds Python's, numpy's, torch's and the accelerator's generators from `value` and a purpose.

    `purpose` can include a rank or a step. Random numbers for different purposes are independent.
    """
    seed = int(np.random.SeedSequence([value, *purpose]).generate_state(1, np.uint64)[0] >> np.uint64(1))
    generators.seed(seed)


@contextmanager
def drawing(device: torch.device, value: int, *purpose: int) -> Iterator[None]:
    """Seeds the generators for the `with` body, as in `seed_all`; then restores their earlier state."""
    before = capture(device)
    seed_all(value, *purpose)
    try:
        yield
    finally:
        restore(before, device)


def make_deterministic() -> None:
    """Makes torch refuse kernels whose result depends on timing."""
    # cuBLAS needs a fixed workspace, set before its first call (see the docs of torch.use_deterministic_algorithms).
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def capture(device: torch.device) -> dict[str, Any]:
    """Returns the state of this rank's generators, in types that `torch.load(weights_only=True)` reads."""
    name, keys, *rest = np.random.get_state(legacy=True)
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    state["numpy"] = (str(name), np.asarray(keys).tolist(), *rest)
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state(device)
    return state


def restore(state: dict[str, Any], device: torch.device) -> None:
    """Restores the generators to the state from `capture`."""
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
    if device.type != "cpu" and "device" in state:
        torch.get_device_module(device).set_rng_state(state["device"], device)

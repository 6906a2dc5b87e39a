"""The state of the random generators is captured in every step, so it is taken in the cheapest form that is whole."""

from __future__ import annotations

import random
import sys
from array import array
from typing import Any

import torch


def capture(device: torch.device) -> dict[str, Any]:
    """Returns the state of this process's generators: torch's, the device's, Python's, and numpy's if it is there."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": (version, _packed(words), gauss)}
    if numpy := sys.modules.get("numpy"):
        found = numpy.random.get_state(legacy=False)
        inner = found["state"]
        state["numpy"] = (found["bit_generator"], torch.from_numpy(inner["key"]), int(inner["pos"]))
        state["gauss"] = (int(found["has_gauss"]), float(found["gauss"]))
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state(device)
    return state


def restore(state: dict[str, Any], device: torch.device) -> None:
    """Put the generators where `capture` found them."""
    torch.set_rng_state(state["torch"].clone())
    version, words, gauss = state["python"]
    random.setstate((version, tuple(array("q", words.numpy().tobytes())), gauss))
    numpy = sys.modules.get("numpy")
    if numpy and "numpy" in state:
        name, key, pos = state["numpy"]
        numpy.random.set_state((name, key.numpy(), pos, *state["gauss"]))
    if device.type != "cpu" and "device" in state:
        torch.get_device_module(device).set_rng_state(state["device"].clone(), device)


def _packed(words: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(array("q", words), dtype=torch.int64)

"""A worker has one of these states in an attempt, and a script reports one of these sections."""

from __future__ import annotations

from typing import Literal

WorkerState = Literal["Waiting", "Starting", "Running", "Finished", "Failed", "Stopped"]
STATES: tuple[WorkerState, ...] = ("Waiting", "Starting", "Running", "Finished", "Failed", "Stopped")
ENDED: tuple[WorkerState, ...] = ("Finished", "Failed", "Stopped")
"""Nothing of the attempt runs on the worker any more."""
SECTIONS = ("setup", "data", "train", "evaluate", "checkpoint", "finish")

"""The states of a worker in an attempt, and the sections that a script can report."""

from __future__ import annotations

from typing import Literal

WorkerState = Literal["Waiting", "Starting", "Running", "Finished", "Failed", "Stopped"]
STATES: tuple[WorkerState, ...] = ("Waiting", "Starting", "Running", "Finished", "Failed", "Stopped")
ENDED: tuple[WorkerState, ...] = ("Finished", "Failed", "Stopped")
"""Nothing of the attempt runs on the worker any more."""
SECTIONS = ("setup", "data", "train", "evaluate", "checkpoint", "finish")

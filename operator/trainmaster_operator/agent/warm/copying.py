"""The stage's sources are copied to where the job's Python finds them, which needn't be the agent's."""

from __future__ import annotations

import os
from typing import Any

from trainmaster_operator.agent.process.saved_report import write_atomically
from trainmaster_operator.agent.warm import stage


def write_stage(folder: str) -> None:
    """Write the stage's package, and `sitecustomize` beside it."""
    package = os.path.join(folder, stage.PACKAGE)
    os.makedirs(package, exist_ok=True)
    places = {name: os.path.join(package, f"{name}.py") for name in stage.SOURCES}
    places["sitecustomize"] = os.path.join(folder, "sitecustomize.py")
    loader: Any = stage.__loader__
    # In the zipapp the bytecode lies in a folder of its own, apart from the sources.
    sources = stage.__name__.replace(".", "/") if hasattr(loader, "archive") else stage.__path__[0]
    for name, path in places.items():
        source = loader.get_data(f"{sources}/{name}.py")
        # What is as it was keeps the bytecode that Python has written for it.
        if _read_bytes(path) != source:
            write_atomically(path, source.decode())


def _read_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""

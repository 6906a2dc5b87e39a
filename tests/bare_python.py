"""A Python like that of a user's image: it has torch, and nothing of Trainmaster."""

from __future__ import annotations

import sys
import sysconfig
import venv
from pathlib import Path


def bare_python(folder: Path) -> Path:
    """Makes a virtual environment with links to this one's packages; returns its Python."""
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "trainmaster" not in entry.name and entry.name != "__pycache__":
            (packages / entry.name).symlink_to(entry)
    return folder / "bin" / Path(sys.executable).name

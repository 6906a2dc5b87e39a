"""Installs the training loop as in the trainer image, separately from this checkout's editable installation.

Modules outside site-packages count as the user's code, which every rank imports again (docs/architecture.md).
"""

from __future__ import annotations

import compileall
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextmanager
def trainloop_installed() -> Iterator[str]:
    """Yields a PYTHONPATH with the installed training loop and this checkout's benchmark programs."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        # The loop is copied, because pip needs a package registry, which a machine with a GPU may not reach.
        target = Path(folder) / "site-packages"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "images" / "trainer" / "trainloop", target / "trainloop", ignore=ignored)
        compileall.compile_dir(target, quiet=1)
        yield f"{target}{os.pathsep}{ROOT}"

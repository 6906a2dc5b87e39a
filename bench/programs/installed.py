"""The training loop is installed as the trainer image has it, apart from this checkout's editable one.

What isn't among the site-packages is the user's own code, which every rank imports anew (docs/architecture.md).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def trainloop_installed() -> Iterator[str]:
    """Yields the PYTHONPATH of ranks that find the training loop installed, and the benchmarks' programs here."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        target = Path(folder) / "site-packages"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
        subprocess.run([*pip, "./images/trainer"], check=True)
        yield f"{target}{os.pathsep}{Path.cwd()}"

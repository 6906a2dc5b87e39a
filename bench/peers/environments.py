"""Installs other tools' packages in separate virtual environments in the user's cache, and keeps them there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

PACKAGES = {"torchft": "torchft-nightly==2026.10.26", "nvrx": "nvidia-resiliency-ext==0.4.1"}


def python_of(name: str) -> Path:
    """Returns the Python of an environment with a peer's packages and the same release of torch as here.

    Raises RuntimeError with pip's last line if the packages can't be installed.
    """
    torch = f"torch=={version('torch').partition('+')[0]}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainmaster-bench"
    folder = cache / f"{name}-{PACKAGES[name].partition('==')[2]}-{torch}-{sys.version_info[0]}.{sys.version_info[1]}"
    python = folder / "bin" / "python"
    if (folder / "installed").exists():
        return python
    print(f"installing {PACKAGES[name]} in {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", torch, "numpy", PACKAGES[name]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{PACKAGES[name]} can't be installed: {(done.stderr.splitlines() or [''])[-1]}")
    (folder / "installed").touch()
    return python

"""The agent makes `trainloop.recovery` importable for the job's Python in its pod, whatever the image.

Beside it is `rank_hook`, which every Python imports as `sitecustomize`: it reports a rank's exception as it is raised.

- **Packed** (`build`): the sources are one entry of the zipapp, compressed as one text. The entry takes 72 KB of the
  1 MiB that a ConfigMap holds; separate files would take 86 KB, and bytecode 185 KB. A job keeps the version that it
  started with, because the zipapp contains the library.
- **Unpacked** into the state folder, at an agent's first start in a pod. Importing takes 12 ms once Python has
  cached the bytecode there, and 50 ms before. Importing from an archive would take 90 ms each time.
- **Found** through PYTHONPATH, because only this variable reaches ranks, torchrun and a job's own launcher. PYTHONPATH
  precedes site-packages, so `stand_in` checks whether the image or the job has its own `trainloop`.

Lightning finds `lightning_progress` there too, because the folder looks like an installed package with an entry point.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import Any

ENTRY = "library.json"
"""The library's entry in the zipapp: a JSON object of sources by path."""
# Because of this part of the path, the warm process (`stage/forkable`) treats the library as an installed package: once
# a rank has imported the library, the warm process imports it before forks.
_INSTALLED = "site-packages"


def enter(environ: dict[str, str], state_dir: str) -> None:
    """Unpack the library, and append its folder to PYTHONPATH. Raises OSError if the folder can't be written.

    An agent that runs from its sources has no library.
    """
    loader: Any = globals()["__loader__"]
    if not hasattr(loader, "archive"):
        return
    packed: bytes = loader.get_data(ENTRY)
    # The folder is named by its content: after a restart, another version of the agent may run while ranks of the
    # earlier agent still import.
    folder = os.path.join(state_dir, f"library-{zlib.crc32(packed):08x}")
    if not os.path.isdir(folder):
        # The folder is renamed last, so that a folder with this name is always complete.
        staging = f"{folder}.new"
        for path, text in json.loads(packed).items():
            file = os.path.join(staging, _INSTALLED, path)
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with open(file, "w", encoding="utf-8") as opened:
                opened.write(text)
        os.rename(staging, folder)
    environ["PYTHONPATH"] = ":".join(filter(None, (environ.get("PYTHONPATH"), os.path.join(folder, _INSTALLED))))

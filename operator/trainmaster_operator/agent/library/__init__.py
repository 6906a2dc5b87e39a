"""The agent makes `trainloop.recovery` importable for the job's Python in its pod, whatever the image.

- **Packed** (`build`): the sources are one entry of the zipapp, compressed as one text. This takes 72 KB of the 1 MiB
  that a ConfigMap holds; separate files would take 86 KB, and bytecode 185 KB. So a job keeps its first version.
- **Unpacked** into the state folder, at an agent's first start in a pod. Importing takes 12 ms once Python has
  cached the bytecode there, and 50 ms before. From an archive it would take 90 ms each time.
- **Found** by PYTHONPATH, which alone reaches ranks, torchrun and a job's own launcher. PYTHONPATH precedes
  site-packages, so `stand_in` checks whether the image or the job has its own `trainloop`.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import Any

ENTRY = "library.json"
"""The library's entry in the zipapp: a JSON object of sources by path."""
# This part of the path marks the library as an installed package for the warm process (`stage/forkable`), which imports
# it before forking, once a rank has imported it.
_INSTALLED = "site-packages"


def enter(environ: dict[str, str], state_dir: str) -> None:
    """Unpack the library, and append it to PYTHONPATH. Raises OSError if it can't be written.

    An agent that runs from its sources has no library.
    """
    loader: Any = globals()["__loader__"]
    if not hasattr(loader, "archive"):
        return
    packed: bytes = loader.get_data(ENTRY)
    # The folder is named by its content, because after a restart another agent may run while old ranks still import.
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

"""Makes folders that only their owner may enter.

Files in these folders may have Kubernetes' open permissions (emptyDirs 0777).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

LOCK = "cluster.lock"
"""A cluster's state folder contains this file."""


def private_folder(folder: Path) -> None:
    """Makes a state folder for its owner alone, with missing parents.

    A folder that others may enter is closed to them if it is empty or belongs to an earlier cluster. Raises OSError for
    any other open folder, because others may need it (such as /tmp), and for a folder of another user, who could
    replace its content.
    """
    make_private(folder)
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it belongs to another user", str(folder))
    if not found.st_mode & 0o077:
        return
    if any(folder.iterdir()) and not (folder / LOCK).exists():
        problem = f"other users may enter it (mode {found.st_mode & 0o7777:04o}), and it isn't a cluster's own folder"
        raise PermissionError(errno.EPERM, problem, str(folder))
    folder.chmod(0o700)


def make_private(folder: Path) -> None:
    """Makes a folder for its owner alone, with missing parents; an existing one stays as it is."""
    for missing in reversed([part for part in (folder, *folder.parents) if not part.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(exist_ok=True)

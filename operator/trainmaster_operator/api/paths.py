"""Paths in a worker's container that belong to Trainmaster or to the system, compared as the kernel resolves them.

`/run//trainmaster/` and `/run/./trainmaster` are `/run/trainmaster`. CEL has nothing that resolves `..` amid a
path, so that `matching` leaves those to `is_below`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

RESERVED_PATHS = ("/run/trainmaster", "/etc/trainmaster", "/opt/trainmaster")
# The container runtime's own, and the root.
SYSTEM_PATHS = ("/dev", "/proc", "/sys")
# A volume here would hide the image's own programs and their settings; below it is a place like any other.
IMAGE_PATHS = ("/bin", "/etc", "/lib", "/lib64", "/sbin", "/usr")


def hides_the_image(path: str) -> bool:
    """Returns whether a volume at an absolute path would hide what the image needs to run anything."""
    return _resolved(path) in ("/", *IMAGE_PATHS)


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Returns whether an absolute path is one of the folders, or in one of them."""
    resolved = _resolved(path)
    return any(resolved == folder or resolved.startswith(f"{folder}/") for folder in folders)


def matching(folders: Iterable[str]) -> str:
    """Returns the regular expression (RE2) of paths that hide the image, or are one of the folders, or in one."""
    # Above the root is the root.
    first, further = r"/([.]{0,2}/)*", r"/([.]?/)*"
    names = "|".join(folder.strip("/").replace("/", further) for folder in folders)
    hidden = "|".join(path.strip("/") for path in IMAGE_PATHS)
    return rf"^{first}([.]{{0,2}}|({hidden})(/[.]?)*|({names})(/.*)?)$"


def _resolved(path: str) -> str:
    # Two slashes at the beginning are kept by normpath, for systems to which they mean something.
    return "/" + posixpath.normpath(path).lstrip("/")

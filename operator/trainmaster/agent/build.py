"""Build the agent as one file: `python -m trainmaster.agent.build <out.pyz>`.

The file holds the sources, which any Python from 3.9 on reads, and beside them bytecode of the Python that builds it,
which saves that Python the compilation. Built twice from the same sources by the same Python it is the same file.
"""

from __future__ import annotations

import glob
import importlib.util
import io
import marshal
import os
import sys
import zipfile
from collections.abc import Sequence

_TIME = (1980, 1, 1, 0, 0, 0)
_MAIN = "import sys\nfrom trainmaster.agent.main import main\nsys.exit(main())\n"
# Bit 0: checked by hash instead of by time; bit 1 unset: not checked against the source at all (PEP 552).
_UNCHECKED_HASH = b"\x01\x00\x00\x00"


def zipapp_bytes() -> bytes:
    """Returns the zipapp's content."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sources = {"__main__.py": _MAIN, "trainmaster/__init__.py": ""}
    for part in ("agent", "wire"):
        for path in sorted(glob.glob(os.path.join(package, part, "**", "*.py"), recursive=True)):
            name = os.path.relpath(path, package)
            # `build` itself stays outside: an installed agent copies its own file.
            if name not in ("agent/build.py", "agent/__main__.py"):
                with open(path, encoding="utf-8") as file:
                    sources[f"trainmaster/{name}"] = file.read()
    archive = io.BytesIO()
    archive.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(archive, "a") as bundle:
        for path, text in sources.items():
            _add(bundle, path, text.encode())
            if path != "__main__.py":
                _add(bundle, path + "c", _bytecode(path, text))
        _add(bundle, "__main__.pyc", _bytecode("__main__.py", _MAIN))
    return archive.getvalue()


def _bytecode(path: str, text: str) -> bytes:
    # Without docstrings, which nobody reads there: 2 ms of a start.
    code = compile(text, path, "exec", dont_inherit=True, optimize=2)
    return (
        importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(text.encode()) + marshal.dumps(code)
    )


def _add(bundle: zipfile.ZipFile, path: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(path, _TIME)
    entry.external_attr = 0o644 << 16
    # Stored: unpacking would cost more of the start than reading 200 KiB.
    bundle.writestr(entry, data, zipfile.ZIP_STORED)


def main(arguments: Sequence[str]) -> int:
    """Write the zipapp to the path given."""
    if len(arguments) != 1:
        print("usage: python -m trainmaster.agent.build <out.pyz>", file=sys.stderr)
        return 64
    path = arguments[0]
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(zipapp_bytes())
    os.chmod(temporary, 0o755)
    os.replace(temporary, path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

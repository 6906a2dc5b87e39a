"""Build the agent as one file: `python -m trainmaster_operator.agent.build <out.pyz>`.

The file contains the sources, for any Python from 3.9 on, and the library for the job's Python (`library`). A separate
folder in the file contains bytecode for the version of Python that builds the file. Other versions compile the sources
(`bench/agent_start.py` compares both). The same sources and the same Python always give the same file, so the file can
be named by its hash.
"""

from __future__ import annotations

import ast
import functools
import glob
import importlib.util
import io
import json
import marshal
import os
import sys
import tokenize
import zipfile
from collections.abc import Mapping, Sequence

from trainmaster_operator.agent.library import ENTRY

_TIME = (1980, 1, 1, 0, 0, 0)
_MAIN = """import sys
sys.path.insert(0, f"{sys.path[0]}/{sys.implementation.cache_tag}")
from trainmaster_operator.agent.main import main
sys.exit(main())
"""
# Bit 0 is set: the file contains the source's hash, not its time. Bit 1 is unset: Python doesn't compare the hash with
# the source (PEP 552).
_UNCHECKED_HASH = b"\x01\x00\x00\x00"
# Later versions of the format write a repeated object only once, and use reference counts to recognize such objects, so
# the file would depend on the other modules that the process has loaded.
_MARSHAL_VERSION = 2
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# `trainloop.recovery`, and the modules of trainloop that it imports.
_LIBRARY = (
    "recovery/*.py",
    "continuing/*.py",
    *("distributed/__init__.py", "distributed/diagnostics.py", "distributed/serialization.py"),
    *("errors.py", "progress.py"),
)
_STAND_IN, _RANK_HOOK = "agent/library/stand_in.py", "agent/library/rank_hook.py"
_LIGHTNING = "agent/library/lightning_progress.py"
# With these, the library's folder looks like an installed package, whose callbacks Lightning adds to each Trainer.
_PACKAGE_INFO = {
    "METADATA": "Metadata-Version: 2.1\nName: trainmaster-library\nVersion: 1\n",
    "entry_points.txt": "".join(
        f"[{package}.callbacks_factory]\ntrainmaster = trainmaster_lightning:{function}\n"
        for package, function in (("lightning.pytorch", "lightning"), ("pytorch_lightning", "pytorch_lightning"))
    ),
}


@functools.cache
def zipapp_bytes() -> bytes:
    """Returns the zipapp's content, which takes 0.4 s of CPU time to make."""
    archive = io.BytesIO()
    archive.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(archive, "a") as bundle:
        _add(bundle, "__main__.py", _MAIN.encode())
        for path, text in package_sources().items():
            _add(bundle, path, text.encode())
            _add(bundle, f"{sys.implementation.cache_tag}/{path}c", bytecode(path, text))
        # A single entry for all modules is a quarter smaller than an entry for each.
        _add(bundle, ENTRY, json.dumps(library_sources()).encode())
    return archive.getvalue()


def package_sources() -> Mapping[str, str]:
    """Returns the sources of the agent's modules by their path in the zipapp."""
    sources = {"trainmaster_operator/__init__.py": ""}
    for part in ("agent", "wire"):
        for path in sorted(glob.glob(os.path.join(_PACKAGE, part, "**", "*.py"), recursive=True)):
            name = os.path.relpath(path, _PACKAGE)
            if name not in ("agent/build.py", "agent/__main__.py", _STAND_IN, _RANK_HOOK, _LIGHTNING):
                sources[f"trainmaster_operator/{name}"] = _read(path)
    return sources


def library_sources() -> Mapping[str, str]:
    """Returns the sources of the library's modules by path; this package's wheel contains all of trainloop."""
    sources = {f"trainmaster_library-1.dist-info/{name}": text for name, text in _PACKAGE_INFO.items()}
    sources["trainmaster_lightning.py"] = _read(os.path.join(_PACKAGE, _LIGHTNING))
    sources["trainloop/__init__.py"] = _read(os.path.join(_PACKAGE, _STAND_IN))
    sources["sitecustomize.py"] = _read(os.path.join(_PACKAGE, _RANK_HOOK))
    installed = os.path.join(_PACKAGE, "library")
    checkout = os.path.join(_PACKAGE, "..", "..", "images", "trainer")
    root = installed if os.path.isdir(installed) else checkout
    for pattern in _LIBRARY:
        for path in sorted(glob.glob(os.path.join(root, "trainloop", pattern))):
            sources[os.path.relpath(path, root)] = _read(path)
    return sources


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return without_prose(file.read())


def without_prose(source: str) -> str:
    """Returns a module's source without comments and docstrings, which nobody reads in a pod.

    Lines keep their numbers. A ConfigMap holds 1 MiB, and a large part of the sources is prose.
    """
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", ())
        for each in body if isinstance(body, list) else ():
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                last = each.end_lineno or each.lineno
                lines[each.lineno - 1 : last] = [""] * (last - each.lineno + 1)
                # Something else may have to be the body of a class or a function.
                lines[each.lineno - 1] = f'{" " * each.col_offset}""'
    return "\n".join(lines) + "\n"


def bytecode(path: str, text: str) -> bytes:
    """Returns a module's bytecode in the format of a .pyc file."""
    # Leaving out docstrings, which nobody reads there, saves 2 ms of a start.
    code = compile(text, path, "exec", dont_inherit=True, optimize=2)
    source_hash = importlib.util.source_hash(text.encode())
    return importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + source_hash + marshal.dumps(code, _MARSHAL_VERSION)


def _add(bundle: zipfile.ZipFile, path: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(path, _TIME)
    entry.external_attr = 0o644 << 16
    # A ConfigMap holds 1 MiB; unpacking costs 4 ms of a start.
    bundle.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m trainmaster_operator.agent.build <out.pyz>", file=sys.stderr)
        return 64
    path = arguments[0]
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    temporary = f"{path}.new"
    with open(temporary, "wb") as file:
        file.write(zipapp_bytes())
    os.chmod(temporary, 0o755)
    os.replace(temporary, path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

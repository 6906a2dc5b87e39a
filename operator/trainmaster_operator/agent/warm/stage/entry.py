"""What happens where the interpreter imports `sitecustomize`: nothing, a probe, or the warm process."""

from __future__ import annotations

import json
import os
import sys
from typing import NoReturn

from . import EXIT_PROBED, MARK, PACKAGE, PROBE, VARIABLE
from .orders import WarmProcess

_SITECUSTOMIZE = "sitecustomize"


def enter(path: str, native: frozenset[str], *, collects: bool) -> None:
    """Run the stage. Returns only in a rank, where nothing of the stage is left.

    `path` is sitecustomize's, `native` has the modules that Python had imported by itself, and `collects` says whether
    it collects garbage.
    """
    told = os.environ.pop(VARIABLE, "")
    os.environ.pop(MARK, None)
    if told == PROBE:
        os._exit(EXIT_PROBED)
    _leave_path(os.path.dirname(os.path.abspath(path)))
    if told:
        # Whatever goes wrong, this process must not become the user's program by itself.
        try:
            with open(told, encoding="utf-8") as file:
                config = json.load(file)
            _restore_variable("PYTHONPATH", config["pythonPath"])
            WarmProcess(config, native, collects=collects).serve()
        except BaseException:
            _end_with_traceback()
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    # The image's own, where there is one. Where there is none, the error is what `site` expects of that.
    sys.modules.pop(_SITECUSTOMIZE, None)
    __import__(_SITECUSTOMIZE)


def _leave_path(folder: str) -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    for known in (folder, os.path.join(folder, PACKAGE)):
        sys.path_importer_cache.pop(known, None)


def _restore_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _end_with_traceback() -> NoReturn:
    import traceback

    traceback.print_exc()
    sys.stderr.flush()
    os._exit(70)

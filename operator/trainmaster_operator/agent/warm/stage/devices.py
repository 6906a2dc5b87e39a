"""A child process answers the CUDA queries of modules during their import, so that this process opens no device.

During its import, torch 2.11's inductor calls `torch.cuda.is_available()` (`_inductor/runtime/benchmarking.py`), and
packages with their own kernels query the GPU's capability. An answer requires cuInit, which opens /dev/nvidia* and may
start a thread, and neither survives a fork. PYTORCH_NVML_BASED_CUDA_CHECK=1 would open /dev/nvidiactl instead, and
answers fewer queries.

During imports only the functions' code is replaced, because torch's compiler and other modules hold references to the
functions. If a module keeps an answer, it is the answer that a rank would get.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from types import FunctionType, SimpleNamespace
from typing import Any

from .this_process import fork

ANSWER_SECONDS = 30.0
"""The child's time limit. CUDA starts in 0.3 s, or in several seconds on a machine with many idle devices."""


def is_available() -> bool:
    found = _warm_answers()
    return bool(found["available"]) if found else is_available()


def device_count() -> int:
    found = _warm_answers()
    return int(found["count"]) if found else device_count()


def current_device() -> int:
    found = _warm_answers()
    return int(found["current"]) if found else current_device()


def get_device_properties(device: Any = None) -> Any:
    found = _warm_answers()
    if not found:
        return get_device_properties(device)
    index = globals()["_get_device_index"](device, optional=True)
    if not 0 <= index < found["count"]:
        raise AssertionError("Invalid device id")
    return found["properties"][index]


_ANSWERED = (is_available, device_count, current_device, get_device_properties)
"""torch.cuda's functions get the code of these functions, which therefore runs with torch.cuda's globals. If the child
gave no answers, a name such as `is_available` in this code calls torch's own code. torch's other queries, such as
`get_device_capability` and `is_bf16_supported`, call these functions.
"""
_known: dict[str, Any] = {}
_native: dict[FunctionType, Any] = {}
"""The code that the functions had before."""


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Answer for torch.cuda in this block, if torch is imported and supports devices."""
    cuda = sys.modules.get("torch.cuda")
    asks = getattr(cuda, "_is_compiled", None)
    if asks is not None and asks():
        for function in _ANSWERED:
            replaced = getattr(cuda, function.__name__, None)
            if isinstance(replaced, FunctionType) and not replaced.__code__.co_freevars:
                _native[replaced] = replaced.__code__
                replaced.__code__ = function.__code__
        vars(cuda)[_warm_answers.__name__] = _warm_answers
    try:
        yield
    finally:
        _restore()


def _restore() -> None:
    for function, code in _native.items():
        function.__code__ = code
    _native.clear()
    getattr(sys.modules.get("torch.cuda"), "__dict__", {}).pop(_warm_answers.__name__, None)


def _warm_answers() -> dict[str, Any]:
    """Returns CUDA's answers, requested once by a child; empty if there are none."""
    if not _known:
        read, write = os.pipe()
        pid = fork()
        if pid == 0:
            _answer(write)
        os.close(write)
        _known.update(_received(read, pid))
    if not _known["count"]:
        _restore()
    return _known if _known["count"] else {}


def _answer(write: int) -> None:
    _restore()
    try:
        cuda: Any = sys.modules["torch.cuda"]
        count, available = cuda.device_count(), cuda.is_available()
        found: dict[str, Any] = {"available": available, "count": count, "current": 0, "properties": []}
        if available:
            found["current"] = cuda.current_device()
            for properties in map(cuda.get_device_properties, range(count)):
                values = {name: getattr(properties, name) for name in dir(properties) if not name.startswith("_")}
                simple = {name: each for name, each in values.items() if isinstance(each, (bool, int, float, str))}
                found["properties"].append(simple)
        with open(write, "w", encoding="utf-8") as file:
            json.dump(found, file)
    except BaseException as error:
        print(f"CUDA can't be asked: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(0)


def _received(read: int, pid: int) -> dict[str, Any]:
    with open(read, "rb", buffering=0) as file:
        data, more = b"", b"."
        while more:
            # The time is limited, because the child never ends if the driver hangs.
            more = file.read(65_536) if select.select([file], [], [], ANSWER_SECONDS)[0] else b""
            data += more
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    try:
        found: dict[str, Any] = json.loads(data)
    except ValueError:
        return {"count": 0}
    found["properties"] = [SimpleNamespace(**each) for each in found["properties"]]
    return found

"""Modules that can't be forked are all found at once, by the import that causes it (`warm/stage/forkable`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DRIVER = """
import json, sys
native = frozenset(sys.modules)
sys.path.insert(0, sys.argv[1])
from trainmaster_operator.agent.warm.stage.forkable import Imports
imports = Imports({"path": "", "ownVariables": ["RANK"], "leftOut": []}, native)
for name in sys.argv[2:]:
    imports.add(name, required=True, users=False)
imports.blame.settle()
print(json.dumps([imports.blame.problems, imports.blame.left_out(), imports.blame.at_fork(), sorted(sys.modules)]))
"""
THREAD = "import threading\nt = threading.Thread(target=threading.Event().wait, name='waiter', daemon=True)\nt.start()"
BRIEF = "import threading, time\nthreading.Thread(target=time.sleep, args=(0.3,)).start()"
DEVICE = "import os\nFD = os.open('/dev/ptmx', os.O_RDWR)"
SOCKET = "import socket\nS = socket.socket()"
FAKE_CUDA = '''
"""As torch.cuda is written: whoever asks has the device open from then on."""
import os, sys, threading
_initialized = False
def _open(line):
    global FD
    FD = os.open("/dev/ptmx", os.O_RDWR)
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    with open(os.path.join(os.path.dirname(__file__), "asked"), "a") as file:
        file.write(f"{line} {os.getpid()}\\n")
def _is_compiled():
    return True
def _get_device_index(device, optional=False):
    return current_device() if device is None else int(device)
def is_available():
    _open("is_available")
    return True
def device_count():
    _open("device_count")
    return 2
def current_device():
    _open("current_device")
    return 1
class _Properties:
    def __init__(self, index):
        self.name, self.major, self.minor, self.uuid = f"H{index}", 9, 0, object()
def get_device_properties(device=None):
    _open("get_device_properties")
    return _Properties(_get_device_index(device, optional=True))
def get_device_capability(device=None):
    found = get_device_properties(device)
    return found.major, found.minor
'''


class Found:
    """Holds the problems found while modules were imported, in a separate process."""

    def __init__(self, folder: Path, *names: str, **modules: str) -> None:
        for name, source in modules.items():
            (folder / f"{name}.py").write_text(source)
        program = [sys.executable, "-c", DRIVER, str(folder), *names]
        done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
        problems: dict[str, str]
        left_out: list[str]
        at_fork: str
        imported: list[str]
        problems, left_out, at_fork, imported = json.loads(done.stdout)
        self.problems, self.left_out, self.at_fork, self.imported = problems, left_out, at_fork, imported


def package(folder: Path, **sources: str) -> None:
    """Make a package `pkg`; `init` is the package's own source."""
    (folder / "pkg").mkdir()
    for name, source in sources.items():
        (folder / "pkg" / f"{'__init__' if name == 'init' else name}.py").write_text(source)


def test_all_modules_that_cannot_be_forked_are_found_at_once(tmp_path: Path) -> None:
    found = Found(tmp_path, "device", "fine", "thread", "sock", device=DEVICE, thread=THREAD, sock=SOCKET, fine="")
    opened = found.problems.pop("device")
    assert opened in ("opened /dev/ptmx", "opened /dev/pts/ptmx")
    assert found.problems == {"thread": "started the thread 'waiter'", "sock": "opened a socket"}
    assert found.left_out == ["device", "sock", "thread"]


def test_the_module_that_did_it_is_blamed_and_not_the_package_that_imports_it_first(tmp_path: Path) -> None:
    """The package, and anything else that imports that module, is still left out."""
    package(
        tmp_path,
        init="from . import fine",
        fine="",
        device=DEVICE,
        lazy="def ask():\n    import importlib\n    importlib.import_module('.device', 'pkg')",
    )
    found = Found(
        tmp_path,
        "first",
        "by_name",
        "by_from",
        "by_call",
        "pkg.fine",
        first="import pkg.device",
        by_name="import pkg.device as d",
        by_from="from pkg import fine, device",
        by_call="import pkg.lazy\npkg.lazy.ask()",
    )
    assert list(found.problems) == ["pkg.device"]
    assert found.left_out == ["by_call", "by_from", "by_name", "first", "pkg.device"]


def test_what_lies_in_a_package_that_cannot_be_forked_cannot_be_either(tmp_path: Path) -> None:
    package(tmp_path, init=DEVICE, inner="")
    found = Found(tmp_path, "pkg", "pkg.inner")
    assert list(found.problems) == ["pkg"] and found.left_out == ["pkg", "pkg.inner"]


def test_a_thread_that_ends_by_itself_harms_no_fork(tmp_path: Path) -> None:
    found = Found(tmp_path, "brief", "importer", brief=BRIEF, importer="import brief")
    assert (found.problems, found.left_out, found.at_fork) == ({}, [], "")


def test_a_thread_whose_library_forks_with_care_harms_no_fork(tmp_path: Path) -> None:
    """pyarrow, and with it pandas and scikit-learn, starts such a thread of jemalloc."""
    named = (
        "import ctypes\ndef run():\n    ctypes.CDLL(None).prctl(15, b'jemalloc_bg_thd')\n    threading.Event().wait()"
    )
    start = "import threading\nthreading.Thread(target=run, daemon=True).start()"
    found = Found(tmp_path, "arrow", arrow=f"{named}\n{start}")
    assert (found.problems, found.left_out, found.at_fork) == ({}, [], "")


@pytest.mark.parametrize("seeding", ["import random\nrandom.seed(0)"])
def test_every_module_that_may_have_seeded_is_left_out(tmp_path: Path, seeding: str) -> None:
    found = Found(tmp_path, "random", "outer", inner=seeding, outer="import inner")
    assert found.problems == dict.fromkeys(("outer", "inner"), "seeded random numbers")


def test_what_asks_for_a_device_is_answered_by_a_child_and_opens_none(tmp_path: Path) -> None:
    """torch 2.11's inductor asks on import whether CUDA is available (`_inductor/runtime/benchmarking.py`)."""
    (tmp_path / "torch" / "cuda").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("from . import cuda")
    (tmp_path / "torch" / "cuda" / "__init__.py").write_text(FAKE_CUDA)
    asking = """
import json, os, torch
from torch.cuda import is_available
held = is_available
answers = [is_available(), torch.cuda.device_count(), torch.cuda.current_device(), torch.cuda.get_device_capability(0)]
answers.append(torch.cuda.get_device_properties().name)
try:
    torch.cuda.get_device_properties(2)
except AssertionError as error:
    answers.append(str(error))
with open(os.path.join(os.path.dirname(__file__), "answers"), "w") as file:
    json.dump([os.getpid(), *answers], file)
"""
    after = "import asking, torch\nassert asking.held is torch.cuda.is_available"
    found = Found(tmp_path, "torch", "asking", "after", asking=asking, after=after)
    assert (found.problems, found.left_out, found.at_fork) == ({}, [], "")
    pid, *answers = json.loads((tmp_path / "answers").read_text())
    assert answers == [True, 2, 1, [9, 0], "H1", "Invalid device id"]
    asked = (tmp_path / "torch" / "cuda" / "asked").read_text().split()[1::2]
    assert len(set(asked)) == 1 and asked[0] != str(pid), "one child, once"


def test_the_functions_of_this_torch_can_be_answered_for() -> None:
    """They are plain functions, whose code can be replaced for a while."""
    program = """
import json, torch, types
from trainmaster_operator.agent.warm.stage import devices
plain = {}
for function in devices._ANSWERED:
    native = getattr(torch.cuda, function.__name__)
    plain[function.__name__] = isinstance(native, types.FunctionType) and not native.__code__.co_freevars
torch.cuda._is_compiled = lambda: True
before = [getattr(torch.cuda, name).__code__ for name in plain]
with devices.answering():
    within = [getattr(torch.cuda, name).__code__ for name in plain]
    devices._known.update({"count": 1, "available": True, "current": 0, "properties": [devices.SimpleNamespace(
        major=9, minor=0, name="H")]})
    answers = [torch.cuda.is_available(), torch.cuda.get_device_capability(), torch.cuda.get_device_name(0)]
    answers.append(torch.cuda.is_bf16_supported())
after = [getattr(torch.cuda, name).__code__ for name in plain]
print(json.dumps([plain, before == after, before != within, answers]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    plain, restored, replaced, answers = json.loads(done.stdout)
    assert all(plain.values()) and restored and replaced
    assert answers == [True, [9, 0], "H", True]


@pytest.fixture(scope="module")
def packages() -> Any:
    """Imports real packages in one process: the compiler, and Hugging Face's Trainer."""
    names = ("torch", "torch._inductor.compile_fx", "transformers.trainer", "tqdm")
    program = [sys.executable, "-c", DRIVER, "/", *names]
    return json.loads(subprocess.run(program, capture_output=True, text=True, check=True, timeout=300).stdout)


def test_real_packages_can_be_imported_before_a_fork(packages: Any) -> None:
    problems, left_out, at_fork, imported = packages
    assert (problems, left_out, at_fork) == ({}, [], "")
    assert "torch._inductor.runtime.benchmarking" in imported and "transformers.trainer" in imported

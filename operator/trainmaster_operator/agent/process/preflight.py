"""This module describes workers' environments, and compares the parts that must be equal for joint training.

It only reads files: importing torch to get its version would add a second to every start.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence

from trainmaster_operator.agent.errors import LaunchError
from trainmaster_operator.agent.process import children
from trainmaster_operator.wire.names import is_python

PACKAGES = ("torch", "numpy", "transformers", "deepspeed", "torch-npu")
MAX_HASHED_BYTES, MAX_TEXT_CHARACTERS = 16_777_216, 65_536
_TORCH_VERSION_FILE = r"(?m)^(cuda|hip|xpu|git_version)(?:\s*:[^=]*)?\s*=\s*['\"]([^'\"]+)['\"]"

_NVIDIA, _AMD = "proc/driver/nvidia", "sys/module/amdgpu/version"
_VERSION = r"\d+\.\d+(?:\.\d+)?"

# Workers can train together even if these values differ.
_WARN_ONLY = frozenset({"machine", "numpy", "gpus", "driver"})


def describe(
    command: Sequence[str], environ: Mapping[str, str], config_file: str, code: str = "", root: str = "/"
) -> dict[str, str]:
    """Returns a description of this worker's environment, such as versions, for the command's own interpreter.

    `code`: the digest of the unpacked code; empty if the image contains the code. `root`: the parent of /proc and /sys.
    """
    found = {"machine": os.uname().machine, **_devices(root)}
    interpreter = ""
    with contextlib.suppress(LaunchError):
        name = command[0] if command and is_python(command[0]) else "python3"
        interpreter = children.find_program(name, environ)
    folders = _site_packages(interpreter, environ)
    version = next((match[1] for match in (re.search(r"/python(3\.\d+)t?/", f"{f}/") for f in folders) if match), "")
    if version:
        found["python"] = version
    for folder in folders:
        for entry in _entries(folder, r".*\.dist-info"):
            name, _, release = entry[: -len(".dist-info")].partition("-")
            name = name.lower().replace("_", "-")
            if name in PACKAGES or name.startswith(("nvidia-nccl", "nvidia-cuda-runtime")):
                found.setdefault(name, release)
        build = children.read_text(os.path.join(folder, "torch", "version.py"), MAX_TEXT_CHARACTERS)
        for name, value in re.findall(_TORCH_VERSION_FILE, build):
            found.setdefault(f"torch {name}", value)
    script = next((word for word in command[1:] if word.endswith(".py") and os.path.isfile(word)), "")
    if code or script:
        found["code"] = code[:16] or _hash(script)
    if os.path.isfile(config_file):
        found["config"] = _hash(config_file)
    return found


def _devices(root: str) -> dict[str, str]:
    """Reads the worker's GPUs and their driver from the kernel's files, without opening a device."""

    def read(*path: str) -> str:
        return children.read_text(os.path.join(root, *path), MAX_TEXT_CHARACTERS)

    texts = (read(_NVIDIA, "gpus", gpu, "information") for gpu in _entries(os.path.join(root, _NVIDIA, "gpus"), ".*"))
    models = [match[1].strip() for match in (re.search(r"(?m)^Model:(.*)", text) for text in texts) if match]
    versions = (re.search(_VERSION, text) for text in (read(_NVIDIA, "version"), read(_AMD)))
    driver = next((match[0] for match in versions if match), "")
    gpus = ", ".join(f"{models.count(model)} x {model}" for model in dict.fromkeys(models))
    return {name: value for name, value in (("gpus", gpus), ("driver", driver)) if value}


def mismatches(environments: Mapping[int, Mapping[str, str]]) -> list[str]:
    """Returns a line for each forbidden difference: the name, and the value of each worker."""
    lines = []
    for name in sorted({name for environment in environments.values() for name in environment} - _WARN_ONLY):
        by_value: dict[str, list[int]] = {}
        for worker, environment in environments.items():
            by_value.setdefault(environment.get(name, "none"), []).append(worker)
        if len(by_value) > 1:
            values = "; ".join(f"{value} on {numbered('worker', found, 8)}" for value, found in by_value.items())
            lines.append(f"{name} differs: {values}")
    return lines


def numbered(kind: str, numbers: Sequence[int], limit: int) -> str:
    """Returns text that names things of one kind by their numbers, at most `limit` of them."""
    more = f" and {len(numbers) - limit} more" if len(numbers) > limit else ""
    return f"{kind}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:limit]))}{more}"


def _site_packages(interpreter: str, environ: Mapping[str, str]) -> list[str]:
    """Returns the folders of this interpreter's packages, in the order in which it searches them, without starting it.

    The interpreter of a virtual environment is a link into another prefix, but doesn't use the packages there.
    """
    folders = [folder for folder in environ.get("PYTHONPATH", "").split(":") if folder]
    if interpreter:
        prefixes = [os.path.dirname(os.path.dirname(os.path.abspath(interpreter)))]
        if not os.path.exists(os.path.join(prefixes[0], "pyvenv.cfg")):
            prefixes.append(os.path.dirname(os.path.dirname(os.path.realpath(interpreter))))
        name = re.search(r"python3\.\d+t?$", os.path.realpath(interpreter))
        for prefix in prefixes:
            for version in _entries(os.path.join(prefix, "lib"), name[0] if name else r"python3\.\d+t?"):
                folders.append(os.path.join(prefix, "lib", version, "site-packages"))
            # Debian's Python uses this folder.
            folders.append(os.path.join(prefix, "lib", "python3", "dist-packages"))
    return [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder)]


def _entries(folder: str, pattern: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if re.fullmatch(pattern, name))
    except OSError:
        return []


def _hash(path: str) -> str:
    # Imported here, because it costs 3 ms of an agent's start, and this runs while the ranks start.
    import hashlib

    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read(MAX_HASHED_BYTES)).hexdigest()[:16]
    except OSError as error:
        return f"unreadable: {error.strerror}"

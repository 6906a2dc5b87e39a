"""`found` names this machine's accelerators; `visibility` returns the variables that show some of them to a program.

Nothing here opens a device: `found` reads the drivers' files and the output of `nvidia-smi -L`. Devices are named as in
the vendors' libraries: by numbers from 0 up, or by UUIDs if numbers would be ambiguous (MIG).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

NVIDIA, AMD, ASCEND = "nvidia.com/gpu", "amd.com/gpu", "huawei.com/Ascend910"
# These limit a program to some devices. HIP builds on ROCR, so its numbers count the devices that ROCR leaves.
VARIABLES: Mapping[str, str] = {
    NVIDIA: "CUDA_VISIBLE_DEVICES",
    AMD: "ROCR_VISIBLE_DEVICES",
    ASCEND: "ASCEND_RT_VISIBLE_DEVICES",
}
HIP = "HIP_VISIBLE_DEVICES"
# An empty value means no device for CUDA, but all devices for HIP and CANN; this value means none for all of them.
NONE = "-1"
NVIDIA_SMI_SECONDS = 20.0

_KINDS_OF_UUID = ("GPU-", "MIG-")
_LISTED = re.compile(r"\s*(GPU|MIG) .*\(UUID: ([^)]+)\)")


def found(environment: Mapping[str, str], root: Path = Path("/")) -> dict[str, tuple[str, ...]]:
    """Returns the devices that `environment` lets a program see, by the name of their resource.

    If it hides all devices of a kind, the kind is listed without devices. A kind that the machine lacks isn't listed.
    """
    machine = {
        NVIDIA: _nvidia(root, environment.get("PATH")),
        AMD: _numbers(_amd(root)),
        ASCEND: _numbers(_files(root / "dev", r"davinci\d+")),
    }
    visible = {}
    for name, devices in machine.items():
        if devices:
            visible[name] = select(devices, environment.get(VARIABLES[name]), uuids=True)
    if AMD in visible:
        visible[AMD] = select(visible[AMD], _value_for_hip(environment, visible), uuids=True)
    return visible


def select(devices: Sequence[str], value: str | None, *, uuids: bool = False) -> tuple[str, ...]:
    """Returns the devices in a variable's value, as CUDA reads it (and `torch.cuda._parse_visible_devices`).

    A number counts `devices` from 0. The first word that names no device ends the list. A duplicate device makes the
    list empty. UUIDs may be abbreviated, so only a program can resolve them; with `uuids` each word counts as a device.
    """
    if value is None:
        return tuple(devices)
    words = [word.strip() for word in value.split(",")]
    kind = words[0][:4] if words[0].startswith(_KINDS_OF_UUID) else ""
    chosen: list[str] = []
    for word in words:
        if kind:
            is_device = word.startswith(kind) and (uuids or word in devices)
        else:
            is_device = word.isdecimal() and int(word) < len(devices)
        if not is_device:
            break
        device = word if kind else devices[int(word)]
        if device in chosen:
            return ()
        chosen.append(device)
    return tuple(chosen)


def visibility(devices: Mapping[str, Sequence[str]], asked: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables by which a container's programs see only its devices.

    `devices` lists the container's devices by each resource of its node. `asked` is the environment in the manifest.
    Numbers in its variables count the container's own devices, because a real container sees no others.
    """
    variables = {}
    for name, variable in VARIABLES.items():
        if name in devices:
            variables[variable] = ",".join(select(devices[name], asked.get(variable))) or NONE
    if AMD in devices:
        # Without this variable torch counts each word of ROCR_VISIBLE_DEVICES as a device, and HIP reads CUDA's
        # variable.
        left = _numbers(len(select(devices[AMD], asked.get(VARIABLES[AMD]))))
        variables[HIP] = ",".join(select(left, _value_for_hip(asked, devices))) or NONE
    return variables


def _value_for_hip(environment: Mapping[str, str], kinds: Mapping[str, object]) -> str | None:
    """Returns the value for HIP, which falls back to CUDA's variable unless that is NVIDIA's (both kinds exist)."""
    return environment.get(HIP) or (NVIDIA not in kinds and environment.get(VARIABLES[NVIDIA])) or None


def _nvidia(root: Path, path: str | None) -> tuple[str, ...]:
    """Returns the devices that nvidia-smi lists, or else those in the driver's files.

    The driver's folder may list GPUs whose device files this container lacks, and the device files may be missing
    until their first use.
    """
    listed = _listed(path)
    if listed:
        return listed
    driver = _files(root / "proc/driver/nvidia/gpus", r".*")
    files = _files(root / "dev", r"nvidia\d+")
    return _numbers(min(driver, files) if driver and files else driver or files)


def _listed(path: str | None) -> tuple[str, ...]:
    """Returns the devices of `nvidia-smi -L`, which opens no CUDA context; none if it is missing or fails."""
    program = shutil.which("nvidia-smi", path=path)
    if program is None:
        return ()
    try:
        done = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    if done.returncode != 0:
        return ()
    lines = [match.groups() for line in done.stdout.splitlines() if (match := _LISTED.match(line))]
    if all(kind == "GPU" for kind, _ in lines):
        return _numbers(len(lines))
    # A GPU's slices are listed below it and replace it.
    following = [*(kind for kind, _ in lines[1:]), ""]
    return tuple(
        uuid for (kind, uuid), next_kind in zip(lines, following, strict=True) if (kind, next_kind) != ("GPU", "MIG")
    )


def _amd(root: Path) -> int:
    """Returns the number of the driver's compute nodes. A container can read only those of its own devices."""
    count = 0
    for properties in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        try:
            text = properties.read_text()
        except OSError:
            continue
        count += re.search(r"^simd_count [1-9]", text, re.MULTILINE) is not None
    return count


def _files(folder: Path, pattern: str) -> int:
    try:
        return sum(re.fullmatch(pattern, entry.name) is not None for entry in folder.iterdir())
    except OSError:
        return 0


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(count))

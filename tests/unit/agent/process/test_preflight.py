"""The agent describes its worker's environment, and the leader lists the differences between workers."""

from __future__ import annotations

import os
from pathlib import Path

from trainmaster_operator.agent.process import preflight


def test_versions_are_read_without_starting_python(tmp_path: Path) -> None:
    binary = tmp_path / "bin" / "python3.12"
    binary.parent.mkdir()
    binary.write_text("")
    binary.chmod(0o755)
    packages = tmp_path / "lib" / "python3.12" / "site-packages"
    for name in ("torch-2.13.0+cu128", "nvidia_nccl_cu12-2.28.3", "requests-2.0"):
        (packages / f"{name}.dist-info").mkdir(parents=True)
    (packages / "torch").mkdir()
    (packages / "torch" / "version.py").write_text(
        "__version__ = '2.13.0+cu128'\ndebug = False\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
    )
    script = tmp_path / "train.py"
    script.write_text("pass")
    found = preflight.describe([str(binary), str(script)], {"PATH": ""}, str(tmp_path / "none"))
    assert found.pop("code")
    assert found == {
        "machine": os.uname().machine,
        "python": "3.12",
        "torch": "2.13.0+cu128",
        "nvidia-nccl-cu12": "2.28.3",
        "torch cuda": "12.8",
    }


def test_differences_are_shown_by_name_value_and_worker() -> None:
    lines = preflight.mismatches(
        {
            0: {"torch": "2.13.0", "machine": "x86_64", "config": "aa"},
            1: {"torch": "2.13.0", "machine": "aarch64", "config": "bb"},
            2: {"torch": "2.12.0", "machine": "x86_64", "config": "aa"},
        }
    )
    assert lines == [
        "config differs: aa on workers 0, 2; bb on worker 1",
        "torch differs: 2.13.0 on workers 0, 1; 2.12.0 on worker 2",
    ]
    assert preflight.mismatches({0: {"numpy": "1"}, 1: {"numpy": "2"}}) == []


def test_gpus_and_driver_are_what_the_kernel_says(tmp_path: Path) -> None:
    """The agent opens no device for it, so a warm start stays possible."""
    nvidia = tmp_path / "proc" / "driver" / "nvidia"
    for gpu in ("0000:19:00.0", "0000:3b:00.0"):
        (nvidia / "gpus" / gpu).mkdir(parents=True)
        (nvidia / "gpus" / gpu / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 5\n")
    module = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:10:07 UTC 2026"
    (nvidia / "version").write_text(f"{module}\nGCC version: 12.2\n")
    found = preflight.describe(["python3"], {"PATH": ""}, str(tmp_path / "none"), root=str(tmp_path))
    assert (found["gpus"], found["driver"]) == ("2 x NVIDIA H200", "580.65.06")
    other = {**found, "gpus": "2 x NVIDIA H100", "driver": "570.1.0"}
    assert preflight.mismatches({0: found, 1: other}) == [], "ranks compute together in spite of it"


def test_an_amd_driver_is_named_too(tmp_path: Path) -> None:
    (tmp_path / "sys" / "module" / "amdgpu").mkdir(parents=True)
    (tmp_path / "sys" / "module" / "amdgpu" / "version").write_text("6.12.12\n")
    found = preflight.describe(["python3"], {"PATH": ""}, str(tmp_path / "none"), root=str(tmp_path))
    assert found["driver"] == "6.12.12" and "gpus" not in found

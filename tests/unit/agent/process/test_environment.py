"""What workers' environments are made of, and where they differ."""

from __future__ import annotations

import os
from pathlib import Path

from trainmaster.agent.process import environment


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
    found = environment.describe([str(binary), str(script)], {"PATH": ""}, str(tmp_path / "none"))
    assert found.pop("code")
    assert found == {
        "machine": os.uname().machine,
        "python": "3.12",
        "torch": "2.13.0+cu128",
        "nvidia-nccl-cu12": "2.28.3",
        "torch cuda": "12.8",
    }


def test_differences_are_shown_by_name_value_and_worker() -> None:
    lines = environment.mismatches(
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
    assert environment.mismatches({0: {"numpy": "1"}, 1: {"numpy": "2"}}) == []

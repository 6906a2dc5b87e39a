"""One line names the ranks' hardware and software (`distributed/diagnostics`), in the log, the report and the
evidence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.ranks import exit_codes, start_command, trainloop
from trainloop.distributed import diagnostics

H200 = "2 x NVIDIA H200, driver 580.65.06, CUDA 13.0, NCCL 2.28.9, peer access to 1 of 1 other GPUs"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Makes two GPUs, of which this rank has the second."""
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder)\nGCC 12.2\n"
    )
    answers: dict[str, Any] = {
        "device_count": lambda: 2,
        "current_device": lambda: 1,
        "get_device_name": lambda index: "NVIDIA H200",
        "can_device_access_peer": lambda index, other: (index, other) == (1, 0),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(diagnostics, "_DRIVERS", (tmp_path / "none", tmp_path / "version"))


def test_a_gpus_line_has_its_name_driver_libraries_and_peers(gpu: None) -> None:
    line = f"{H200}, torch {torch.__version__}, one rank without a backend"
    assert diagnostics.describe(torch.device("cuda")) == diagnostics.describe(torch.device("cuda", 1)) == line


def test_rocm_has_hip_and_rccl(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.2.0")
    assert ", HIP 7.2.0, RCCL 2.28.9, " in diagnostics.describe(torch.device("cuda", 1))


def test_a_cpus_line_has_its_threads() -> None:
    threads = torch.get_num_threads()
    line = f"CPU, threads {threads}, torch {torch.__version__}, one rank without a backend"
    assert diagnostics.describe(torch.device("cpu")) == line


@pytest.mark.parametrize(("rank", "local_rank", "said"), [(0, 0, 2), (1, 1, 0), (2, 0, 1)])
def test_each_worker_says_it_once_and_rank_0_what_differs(
    capsys: pytest.CaptureFixture[str], rank: int, local_rank: int, said: int
) -> None:
    mine = diagnostics.describe(torch.device("cpu"))
    lines = [mine, mine, "1 x NVIDIA H100", "1 x NVIDIA H100"]
    diagnostics.announce(torch.device("cpu"), rank, local_rank, lambda _line: lines)
    printed = capsys.readouterr().out.splitlines()
    warning = "warning: not all ranks run on what rank 0 does: 1 x NVIDIA H100 on rank 2, 3"
    assert printed == [f"environment: {mine}", warning][:said]


def test_the_loop_says_it_at_the_start_of_each_attempt(tmp_path: Path) -> None:
    options = [
        "steps=1",
        "batch.size=8",
        "checkpoint.export=false",
        "task.name=tests.trainer.toy:Toy",
        "task.options.double=false",
        "metrics.plot=false",
        f"metrics.path={tmp_path}",
    ]
    arguments = [part for option in options for part in ("--set", option)]
    attempt = {"TRAINMASTER_ATTEMPT": "1", "TRAINMASTER_STACKS_FILE": str(tmp_path / "stacks")}
    assert exit_codes([start_command(tmp_path / "out", trainloop, *arguments, **attempt)]) == [0]
    line = f"environment: CPU, threads 1, torch {torch.__version__}, one rank without a backend"
    assert (tmp_path / "out").read_text().splitlines().count(line) == 1


def test_a_script_with_recovery_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    from trainloop.recovery import Recovery

    model = torch.nn.Linear(2, 2)
    Recovery(model, torch.optim.SGD(model.parameters()))
    assert f"environment: {diagnostics.describe(torch.device('cpu'))}\n" in capsys.readouterr().out

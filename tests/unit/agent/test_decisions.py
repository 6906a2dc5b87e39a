"""What the agent decides without any process: command lines, verdicts, differences, limits."""

from __future__ import annotations

import os
from pathlib import Path
from string import Template

import pytest

from tests.signer import GOOD
from tests.signer import environment as trusted
from trainmaster.agent.errors import LaunchError
from trainmaster.agent.planner import classification
from trainmaster.agent.planner.state import Ending
from trainmaster.agent.process import cgroup, environment, launcher
from trainmaster.agent.settings import Settings, read_settings
from trainmaster.wire.assignment import Assignment
from trainmaster.wire.report import Report

STARTING = Report(3, 1, "uid", "Starting")


def settings(**environ: str) -> Settings:
    return read_settings({**trusted(), "TRAINMASTER_WORKER": "1", "TRAINMASTER_STATE_DIR": "/state", **environ})


def plan(*command: str, **environ: str) -> launcher.Launch:
    return launcher.plan_launch(settings(**environ), Assignment.parse(GOOD), 1, command)


def test_a_python_command_is_started_by_its_own_pythons_torchrun() -> None:
    launch = plan("/opt/conda/bin/python3.12", "-m", "trainloop", "--config", "c", NPROC_PER_NODE="8")
    assert launch.arguments[:3] == ("/opt/conda/bin/python3.12", "-m", "torch.distributed.run")
    assert launch.arguments[-5:] == ("/opt/conda/bin/python3.12", "-m", "trainloop", "--config", "c")
    assert {
        "--nnodes=2",
        "--nproc-per-node=8",
        "--node-rank=1",
        "--rdzv-backend=static",
        "--master-addr=job-0.job.ns.svc",
        "--master-port=28533",
        "--max-restarts=0",
        "--no-python",
    } <= set(launch.arguments)
    assert launch.wraps_ranks


def test_torchruns_macros_leave_the_shell_that_announces_a_rank_as_it_is() -> None:
    """It passes every argument through string.Template (torch.distributed.elastic.utils.api.macros)."""
    launch = plan("python3", "train.py", NPROC_PER_NODE="8")
    assert [Template(text).safe_substitute(local_rank="0") for text in launch.arguments] == list(launch.arguments)


def test_another_program_is_started_by_the_torchrun_of_the_path() -> None:
    assert plan("./train.sh", "--fast").arguments[0] == "torchrun"


@pytest.mark.parametrize(
    "command",
    [("torchrun", "train.py"), ("/usr/bin/torchrun", "x"), ("python", "-m", "torch.distributed.run", "train.py")],
)
def test_a_command_that_starts_torchrun_itself_is_not_nested(command: tuple[str, ...]) -> None:
    assert plan(*command) == (command, False)


def test_the_exec_launcher_is_the_command() -> None:
    assert plan("python", "x.py", TRAINMASTER_LAUNCHER="exec") == (("python", "x.py"), False)


def test_an_empty_command_is_a_launch_error() -> None:
    with pytest.raises(LaunchError, match="the command is empty"):
        plan("")


def test_the_manifests_environment_is_set_anew_for_an_attempt() -> None:
    made = launcher.rank_environment(
        settings(NPROC_PER_NODE="4"),
        Assignment.parse(GOOD),
        1,
        {"RANK": "9", "PET_NODE_RANK": "9", "PYTHONUNBUFFERED": "0"},
    )
    assert "RANK" not in made, "torchrun sets it"
    assert (made["PET_NODE_RANK"], made["WORLD_SIZE"], made["PYTHONUNBUFFERED"]) == ("1", "8", "0")


def test_a_user_without_a_name_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """getpass.getuser() is a KeyError for a user that the image's /etc/passwd doesn't have."""
    assert "USER" not in launcher.rank_environment(settings(), Assignment.parse(GOOD), 1, {})
    monkeypatch.setattr("os.getuid", lambda: 987_654)
    assert launcher.rank_environment(settings(), Assignment.parse(GOOD), 1, {})["USER"] == "987654"
    assert launcher.rank_environment(settings(), Assignment.parse(GOOD), 1, {"LOGNAME": "ada"})["LOGNAME"] == "ada"


def test_the_world_is_counted_by_worker_where_workers_differ() -> None:
    uneven = Assignment.parse({**GOOD, "processes": [8, 1]})
    made = launcher.rank_environment(settings(TRAINMASTER_LAUNCHER="exec"), uneven, 1, {})
    assert (made["RANK"], made["WORLD_SIZE"], made["NPROC_PER_NODE"]) == ("8", "9", "1")


@pytest.mark.parametrize(
    ("ending", "error", "oom_kills", "reason", "culprit"),
    [
        (Ending(1), "ValueError: x", 0, "Error", True),
        (Ending(1), "RuntimeError: Connection closed by peer [10.0.0.1]:4321", 0, "Error", False),
        (Ending(1), "torch.distributed.DistBackendError: NCCL error ... remote process exited", 0, "Error", False),
        (Ending(1), "warning: Connection refused, trying again\n" + "step\n" * 20 + "ValueError", 0, "Error", True),
        (Ending(137, 9), "", 0, "Signal", True),
        (Ending(137, 9), "", 1, "OOMKilled", True),
        (Ending(139, 11), "Connection reset by peer", 0, "Signal", True),
        (Ending(134, 6), "Watchdog caught collective operation timeout", 0, "Signal", False),
        (Ending(134, 6), "free(): invalid pointer", 0, "Signal", True),
        (
            Ending(134, 6),
            "Watchdog caught collective operation timeout\nFatal Python error: Aborted\n" + "  File x\n" * 9,
            0,
            "Signal",
            False,
        ),
        (
            Ending(1),
            "The client socket has timed out after 60s while trying to connect to (job-0, 29500).",
            0,
            "MasterUnreachable",
            False,
        ),
        (Ending(70), "  File x\ntrainloop.errors.Diverged: loss\nDiverged: loss is nan", 0, "Diverged", True),
        (Ending(2), "trainloop.errors.ConfigError: batch is missing: it is required", 0, "Usage", True),
        (Ending(2), "usage: train.py [-h]", 0, "Error", True),
        (Ending(70), "KeyError: 'Diverged'", 0, "Error", True),
        (Ending(1), "Diverged: loss is nan", 0, "Error", True),
        (Ending(67), "PreflightMismatch: torch differs", 0, "PreflightMismatch", True),
    ],
)
def test_a_failure_is_judged_by_its_end(ending: Ending, error: str, oom_kills: int, reason: str, culprit: bool) -> None:
    report = classification.classify(STARTING, ending, 5, error, oom_kills)
    assert (report.state, report.reason, report.culprit, report.rank) == ("Failed", reason, culprit, 5)
    assert report.error


def test_of_two_ranks_the_more_telling_end_is_kept() -> None:
    broken = classification.classify(STARTING, Ending(1), 0, "Broken pipe", 0)
    error = classification.classify(STARTING, Ending(1), 1, "ValueError", 0)
    killed = classification.classify(STARTING, Ending(137, 9), 2, "", 0)
    assert classification.more_telling(broken, error)
    assert classification.more_telling(error, killed)
    assert not classification.more_telling(killed, error)
    assert not classification.more_telling(broken, broken), "the first one stays"


def test_both_versions_of_cgroups_tell_their_kills(tmp_path: Path) -> None:
    assert cgroup.oom_kill_count(str(tmp_path)) == 0
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert cgroup.oom_kill_count(str(tmp_path)) == 4
    (tmp_path / "memory.events").write_text("oom 1\noom_kill 2\noom_group_kill 0\n")
    assert cgroup.oom_kill_count(str(tmp_path)) == 2


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


def test_differences_are_told_by_name_value_and_worker() -> None:
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

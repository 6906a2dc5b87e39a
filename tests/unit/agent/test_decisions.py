"""What the agent decides without any process: command lines, verdicts, differences, limits."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from string import Template
from typing import Any

import pytest

from trainmaster.agent import environment, hang, launcher, metrics, stacks, verdict
from trainmaster.agent.assignment import from_wire
from trainmaster.agent.children import Ending
from trainmaster.agent.errors import LaunchError
from trainmaster.agent.progress import Heartbeats
from trainmaster.agent.report import Report
from trainmaster.agent.resolve import lookup_hosts
from trainmaster.agent.settings import Settings, read_settings

from .test_parsers import GOOD


def settings(**environ: str) -> Settings:
    return read_settings({"TRAINMASTER_WORKER": "1", "TRAINMASTER_STATE_DIR": "/state", **environ})


def plan(*command: str, **environ: str) -> launcher.Launch:
    return launcher.plan_launch(settings(**environ), from_wire(GOOD), 1, command)


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
        "--master-port=29533",
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
        settings(NPROC_PER_NODE="4"), from_wire(GOOD), 1, {"RANK": "9", "PET_NODE_RANK": "9", "PYTHONUNBUFFERED": "0"}
    )
    assert "RANK" not in made, "torchrun sets it"
    assert (made["PET_NODE_RANK"], made["WORLD_SIZE"], made["PYTHONUNBUFFERED"]) == ("1", "8", "0")


def test_the_world_is_counted_by_worker_where_workers_differ() -> None:
    uneven = from_wire({**GOOD, "processes": [8, 1]})
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
        (Ending(70), "KeyError: 'Diverged'", 0, "Error", True),
        (Ending(1), "Diverged: loss is nan", 0, "Error", True),
        (Ending(67), "PreflightMismatch: torch differs", 0, "PreflightMismatch", True),
    ],
)
def test_a_failure_is_judged_by_its_end(ending: Ending, error: str, oom_kills: int, reason: str, culprit: bool) -> None:
    outcome = verdict.judge_failure(ending, 5, error, oom_kills)
    assert (outcome.state, outcome.reason, outcome.culprit, outcome.rank) == ("Failed", reason, culprit, 5)
    assert outcome.error


def test_of_two_ranks_the_more_telling_end_is_kept() -> None:
    broken = verdict.judge_failure(Ending(1), 0, "Broken pipe", 0)
    error = verdict.judge_failure(Ending(1), 1, "ValueError", 0)
    killed = verdict.judge_failure(Ending(137, 9), 2, "", 0)
    assert verdict.more_telling(broken, error)
    assert verdict.more_telling(error, killed)
    assert not verdict.more_telling(killed, error)
    assert not verdict.more_telling(broken, broken), "the first one stays"


def test_both_versions_of_cgroups_tell_their_kills(tmp_path: Path) -> None:
    assert verdict.oom_kill_count(str(tmp_path)) == 0
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert verdict.oom_kill_count(str(tmp_path)) == 4
    (tmp_path / "memory.events").write_text("oom 1\noom_kill 2\noom_group_kill 0\n")
    assert verdict.oom_kill_count(str(tmp_path)) == 2


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


@pytest.mark.parametrize(
    ("written", "silent", "hung"),
    [
        ({"step": 3}, 11, True),
        ({"step": 3}, 9, False),
        ({"section": "setup"}, 99, False),
        ({"section": "setup"}, 101, True),
        ({"step": 3, "section": "checkpoint", "sectionSeconds": 50}, 49, False),
        ({"step": 3, "section": "checkpoint", "sectionSeconds": 50}, 51, True),
    ],
)
def test_a_stall_has_the_limit_of_what_the_rank_is_at(written: dict[str, Any], silent: float, hung: bool) -> None:
    limits = settings(TRAINMASTER_PROGRESS_TIMEOUT="10", TRAINMASTER_FIRST_STEP_TIMEOUT="100")
    beats = Heartbeats("/nowhere", range(0, 2))
    beats.ranks = {"0": {"step": 3}, "1": written}
    beats.progressed_at = {"0": 1_000.0 + silent, "1": 1_000.0}
    stall = hang.find_stall(limits, beats, 0.0, 1_000.0 + silent)
    assert (stall is not None) is hung
    if stall is not None:
        assert stall.rank == 1


def test_ranks_that_never_write_are_not_watched() -> None:
    beats = Heartbeats("/nowhere", range(0, 1))
    assert hang.find_stall(settings(TRAINMASTER_FIRST_STEP_TIMEOUT="1"), beats, 0.0, 1e6) is None


def test_a_signal_for_stacks_is_not_sent_to_who_does_not_catch_it() -> None:
    assert not stacks.ask_for_stacks(os.getpid())
    assert "State" not in hang.look_at(os.getpid())
    received = []
    before = signal.signal(stacks.STACKS_SIGNAL, lambda number, _frame: received.append(number))
    try:
        assert stacks.ask_for_stacks(os.getpid())
    finally:
        signal.signal(stacks.STACKS_SIGNAL, before)
    assert received == [stacks.STACKS_SIGNAL]


def test_metrics_escape_their_labels() -> None:
    text = metrics.render_metrics('a"b\\c', 3, Report(2, 3, "u", "Running"), {"7": {"step": 4, "loss": 0.5}})
    assert 'trainmaster_attempt{job="a\\"b\\\\c",worker="3"} 2\n' in text
    assert 'trainmaster_loss{job="a\\"b\\\\c",worker="3",rank="7"} 0.5\n' in text


def test_the_hosts_file_is_read_like_etc_hosts(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# comment\n127.1.2.3 a.svc alias # more\nnonsense b.svc\n::1 six.svc\n\n")
    assert lookup_hosts(str(path), "alias") == "127.1.2.3"
    assert lookup_hosts(str(path), "six.svc") == "::1"
    assert lookup_hosts(str(path), "b.svc") == ""
    assert lookup_hosts(str(tmp_path / "none"), "a.svc") == ""

"""What the agent decides without any process: command lines, verdicts, differences, limits."""

from __future__ import annotations

import json
import os
import pickle
import signal
from pathlib import Path
from string import Template
from typing import Any

import pytest

from tests.signer import environment as trusted
from trainmaster.agent.errors import LaunchError
from trainmaster.agent.hang import diagnosis, rank_states, recorder, stacks
from trainmaster.agent.hang.kernel_view import describe_process
from trainmaster.agent.network import connection, metrics
from trainmaster.agent.network.resolve import lookup_hosts
from trainmaster.agent.planner import classification
from trainmaster.agent.planner.state import Ending
from trainmaster.agent.process import cgroup, environment, launcher
from trainmaster.agent.progress import Heartbeats
from trainmaster.agent.settings import Settings, read_settings
from trainmaster.wire.assignment import Assignment
from trainmaster.wire.report import Report

from .test_parsers import GOOD

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
    stall = rank_states.judge(rank_states.standings(limits, beats, range(2), 0.0, 1_000.0 + silent))
    assert (stall is not None) is hung
    if stall is not None:
        assert stall.rank == 1


def test_ranks_that_never_write_are_not_watched() -> None:
    beats = Heartbeats("/nowhere", range(0, 1))
    limits = settings(TRAINMASTER_FIRST_STEP_TIMEOUT="1")
    assert rank_states.judge(rank_states.standings(limits, beats, range(1), 0.0, 1e6)) is None


def at(rank: int, silent: float = 20.0, **fields: Any) -> rank_states.Standing:
    """A rank that has done step 7 and may be silent for 10 s."""
    values = {"step": 7, "silent": silent, "limit": 10.0, "setting": "progressSeconds", **fields}
    return rank_states.Standing(rank, **values)


@pytest.mark.parametrize(
    ("ranks", "named", "why"),
    [
        pytest.param([at(0), at(1, 19.0, state="T")], 1, "stopped by a signal (state T)", id="a stopped process"),
        pytest.param([at(0, step=6), at(1, state="T")], 1, "(state T)", id="stopped goes before fewer steps"),
        pytest.param([at(0), at(1, 19.0, step=6)], 1, "all other ranks have done step 7", id="fewest steps"),
        pytest.param(
            [at(0, collective=9), at(1, 19.0, collective=8)], 1, "never entered collective 9", id="fewest collectives"
        ),
        pytest.param([at(0, collective=9), at(1, 19.0)], 0, "", id="collectives that aren't known of all say nothing"),
        pytest.param([at(0, waits=True), at(1, 19.0)], 1, "wait in a collective", id="who isn't in a collective"),
        pytest.param([at(0), at(1, 19.0, state="D")], 1, "", id="who waits for a device"),
        pytest.param([at(0, 20.0), at(1, 21.0)], 1, "for 21 s at step 7", id="the longest silence"),
        pytest.param([at(0), at(1, 9.0, step=6)], 1, "step 6", id="who isn't over the limit itself"),
        pytest.param([at(0), rank_states.Standing(1)], 0, "", id="who never wrote is not known"),
    ],
)
def test_of_all_ranks_the_one_that_stopped_first_is_named(
    ranks: list[rank_states.Standing], named: int, why: str
) -> None:
    for order in (ranks, ranks[::-1]):
        verdict = rank_states.judge(order)
        assert verdict is not None
        assert (verdict.rank, verdict.patience) == (named, 0.0)
        assert why in verdict.sentence


def test_nobody_hangs_while_a_rank_is_at_something_long() -> None:
    saving = at(1, 15.0, limit=60.0, patient=True, section="checkpoint")
    verdict = rank_states.judge([at(0), saving, at(2)])
    assert verdict is not None
    assert verdict.patience == 45.0
    compiling = rank_states.Standing(1, silent=100.0, limit=1_800.0, patient=True)
    assert (rank_states.judge([at(0, step=1), compiling]) or at(0)).patience == 1_700.0
    for ranks in ([at(0), saving._replace(silent=61.0)], [at(0), saving._replace(step=8)], [at(0, state="T"), saving]):
        named = rank_states.judge(ranks)
        assert named is not None
        assert not named.patience, ranks


def test_a_rank_that_waits_for_others_is_told_by_its_main_thread() -> None:
    waits = rank_states.waits_in_collective
    head = 'Thread 0x00007f01 (most recent call first):\n  File "/x/threading.py", line 320 in wait\n\n'
    torch = '  File "/site-packages/torch/distributed/distributed_c10d.py", line 3245 in all_reduce\n'
    own = '  File "train.py", line 7 in load\n'
    main = "Current thread 0x00007f02 (most recent call first):\n"
    assert waits(head + main + torch + own)
    assert not waits(head + main + own * 7 + torch)
    assert not waits(main + torch + head.replace("7f01", "7f03")), "the oldest thread comes last"
    assert waits('Thread 7 (idle): "MainThread"\n' + torch + 'Thread 9 (idle): "other"\n' + own)
    assert not waits("")


def test_a_flight_recorders_dump_is_read_without_building_anything_from_it() -> None:
    frames = [
        {"name": "all_reduce", "filename": "/lib/torch/distributed/distributed_c10d.py", "line": 3245},
        {"name": "step", "filename": "/app/train.py", "line": 8},
    ]
    done = {"pg_id": 0, "collective_seq_id": 16, "state": "completed", "profiling_name": "nccl:broadcast"}
    waits = {**done, "collective_seq_id": 17, "state": "started", "frames": frames, "input_sizes": [[3]]}
    other = {**waits, "pg_id": 1, "collective_seq_id": 99}
    recorded = recorder.summarize(pickle.dumps({"entries": [done, waits, other]}))
    assert recorded is not None
    assert recorded.collective == 17
    assert recorded.sentence == (
        "waits in collective 17: nccl:broadcast of [[3]] (started), called at /app/train.py:8 in step"
    )
    assert recorder.summarize(pickle.dumps({"entries": [done]})) == (16, "last collective 16, completed")
    assert recorder.summarize(pickle.dumps({"entries": [Path("/x")]})) is None, "not a plain value"
    assert recorder.summarize(pickle.dumps({"entries": [done]})[:-9]) is None, "half written"


def test_stacks_that_were_asked_for_do_not_hide_a_later_error() -> None:
    asked = 'Thread 0x0001 (most recent call first):\n  File "x.py", line 1 in wait\nValueError: later\n'
    assert stacks.shorten_stacks(asked) == ""
    fatal = f"{asked}Fatal Python error: Aborted\n\nCurrent thread 0x0002 (most recent call first):\n  File y\n"
    assert stacks.shorten_stacks(fatal).splitlines()[-4:] == [
        "ValueError: later",
        "Fatal Python error: Aborted",
        "Current thread 0x0002 (most recent call first):",
        "  File y",
    ]


def test_texts_are_bounded_as_they_travel() -> None:
    assert stacks.shortened("abc", 100) == "abc"
    for text in ("é" * 1_000, '"' * 1_000, "\n\x00" * 500):
        short = stacks.shortened(text, 300)
        assert 0 < len(json.dumps(short)) <= 300
    line = diagnosis.evidence_line(1, 0, {str(rank): {"text": "é\n" * 100_000, "step": "x"} for rank in range(16)})
    assert len(connection.json_line(line)) < 65_536
    many = {str(rank): {"text": "é" * 9_000, **at(rank).to_wire(), "state": "S"} for rank in range(1_000)}
    assert len(connection.json_line(diagnosis.evidence_line(2**52, 4_000, many))) < 65_536
    assert line["ranks"]["3"].keys() == {"text"}
    assert diagnosis.clean_evidence({"x": {}, "1": 2, "-1": {}}) == diagnosis.clean_evidence([]) == {}


def test_a_signal_for_stacks_is_not_sent_to_who_does_not_catch_it() -> None:
    assert not stacks.ask_for_stacks(os.getpid())
    assert "State" not in describe_process(os.getpid())
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

"""The agent builds an attempt's command line and its ranks' environment."""

from __future__ import annotations

from string import Template

import pytest

from tests.signer import GOOD
from tests.signer import environment as trusted
from trainmaster_operator.agent.errors import LaunchError
from trainmaster_operator.agent.process.launcher import CommandLine, Launch
from trainmaster_operator.agent.settings import AgentSettings, read_settings
from trainmaster_operator.wire.assignment import Assignment


def settings(**environ: str) -> AgentSettings:
    return read_settings({**trusted(), "TRAINMASTER_WORKER": "1", "TRAINMASTER_STATE_DIR": "/state", **environ})


def plan(*command: str, **environ: str) -> CommandLine:
    return Launch(settings(**environ), Assignment.parse(GOOD), 1, {}).command_line(command)


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
    """torchrun passes each argument through string.Template (torch.distributed.elastic.utils.api.macros)."""
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
    base = {"RANK": "9", "PET_NODE_RANK": "9", "PYTHONUNBUFFERED": "0"}
    made = Launch(settings(NPROC_PER_NODE="4"), Assignment.parse(GOOD), 1, base).environment()
    assert "RANK" not in made, "torchrun sets it"
    assert (made["PET_NODE_RANK"], made["WORLD_SIZE"], made["PYTHONUNBUFFERED"]) == ("1", "8", "0")


def test_a_user_without_a_name_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """getpass.getuser() raises a KeyError for a user who isn't in the image's /etc/passwd."""
    launch = Launch(settings(), Assignment.parse(GOOD), 1, {})
    assert "USER" not in launch.environment()
    monkeypatch.setattr("os.getuid", lambda: 987_654)
    assert launch.environment()["USER"] == "987654"
    assert launch._replace(base={"LOGNAME": "ada"}).environment()["LOGNAME"] == "ada"


def test_the_world_is_counted_by_worker_where_workers_differ() -> None:
    uneven = Assignment.parse({**GOOD, "processes": [8, 1]})
    made = Launch(settings(TRAINMASTER_LAUNCHER="exec"), uneven, 1, {}).environment()
    assert (made["RANK"], made["WORLD_SIZE"], made["NPROC_PER_NODE"]) == ("8", "9", "1")

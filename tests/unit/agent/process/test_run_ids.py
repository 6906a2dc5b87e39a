"""The id of a job's run: who gets it, however its ranks are started, and who has decided otherwise."""

from __future__ import annotations

import pytest

from tests.signer import JOB_UID, environment
from trainmaster_operator.agent.process import launcher
from trainmaster_operator.agent.process.launcher import run_variables
from trainmaster_operator.agent.settings import AgentSettings, read_settings
from trainmaster_operator.wire.assignment import Assignment

OURS = {"WANDB_RUN_ID": JOB_UID, "WANDB_RESUME": "allow"}
ASSIGNMENT = Assignment(JOB_UID, 3, (0, 1), None, ("job-0.job.ns.svc", "job-1.job.ns.svc"), 28_000)


def settings(**environ: str) -> AgentSettings:
    return read_settings({**environment(), "TRAINMASTER_WORKER": "0", "TRAINMASTER_STATE_DIR": "/state", **environ})


def test_rank_0_has_the_jobs_run_and_other_ranks_have_none() -> None:
    assert run_variables(settings(), 0, {}) == OURS
    assert run_variables(settings(), 1, {}) == {}
    assert run_variables(settings(TRAINMASTER_JOB_UID=""), 0, {}) == {}


@pytest.mark.parametrize("name", ["WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SWEEP_ID"])
def test_who_decides_about_runs_is_left_alone(name: str) -> None:
    assert run_variables(settings(), 0, {name: "mine"}) == {}
    line = launcher.command_line(settings(), ASSIGNMENT, 0, ["python3", "train.py"], {name: "mine"})
    assert "WANDB" not in " ".join(line.arguments)


@pytest.mark.parametrize("attempt", [1, 7])
def test_it_is_the_same_in_every_attempt(attempt: int) -> None:
    variables = launcher.attempt_variables(
        settings(TRAINMASTER_LAUNCHER="exec"), ASSIGNMENT._replace(attempt=attempt), 0, {}
    )
    assert OURS.items() <= variables.items()


def test_a_launcher_of_the_users_own_gets_none_for_ranks_that_it_starts_itself() -> None:
    several = settings(TRAINMASTER_LAUNCHER="exec", NPROC_PER_NODE="2")
    assert not OURS.keys() & launcher.attempt_variables(several, ASSIGNMENT, 0, {}).keys()
    assert not OURS.keys() & launcher.attempt_variables(settings(), ASSIGNMENT, 0, {}).keys()


def test_a_rank_that_is_forked_has_its_own() -> None:
    assert OURS.items() <= launcher.rank_variables(settings(NPROC_PER_NODE="2"), ASSIGNMENT, 0, 0, {}).items()
    for node_rank, local_rank in ((0, 1), (1, 0)):
        made = launcher.rank_variables(settings(NPROC_PER_NODE="2"), ASSIGNMENT, node_rank, local_rank, {})
        assert not OURS.keys() & made.keys()

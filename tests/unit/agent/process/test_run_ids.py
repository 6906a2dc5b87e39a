"""Ranks get the id of their job's run, however they are started, unless the user has set one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from tests.signer import JOB_UID, environment
from trainmaster_operator.agent.process.launcher import Launch
from trainmaster_operator.agent.settings import AgentSettings, read_settings
from trainmaster_operator.wire.assignment import Assignment

OURS = {"WANDB_RUN_ID": JOB_UID, "WANDB_RESUME": "allow"}
ASSIGNMENT = Assignment(JOB_UID, 3, (0, 1), None, ("job-0.job.ns.svc", "job-1.job.ns.svc"), 28_000)


def settings(**environ: str) -> AgentSettings:
    return read_settings({**environment(), "TRAINMASTER_WORKER": "0", "TRAINMASTER_STATE_DIR": "/state", **environ})


def launch(node_rank: int = 0, base: Mapping[str, str] = MappingProxyType({}), **environ: str) -> Launch:
    return Launch(settings(**environ), ASSIGNMENT, node_rank, base)


def test_rank_0_has_the_jobs_run_and_other_ranks_have_none() -> None:
    assert launch().run_variables(0) == OURS
    assert launch().run_variables(1) == {}
    assert launch(TRAINMASTER_JOB_UID="").run_variables(0) == {}


@pytest.mark.parametrize("name", ["WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SWEEP_ID"])
def test_who_decides_about_runs_is_left_alone(name: str) -> None:
    decided = launch(base={name: "mine"})
    assert decided.run_variables(0) == {}
    line = decided.command_line(["python3", "train.py"])
    assert "WANDB" not in " ".join(line.arguments)


@pytest.mark.parametrize("attempt", [1, 7])
def test_it_is_the_same_in_every_attempt(attempt: int) -> None:
    started = launch(TRAINMASTER_LAUNCHER="exec")._replace(assignment=ASSIGNMENT._replace(attempt=attempt))
    assert OURS.items() <= started.attempt_variables().items()


def test_a_launcher_of_the_users_own_gets_none_for_ranks_that_it_starts_itself() -> None:
    assert not OURS.keys() & launch(TRAINMASTER_LAUNCHER="exec", NPROC_PER_NODE="2").attempt_variables().keys()
    assert not OURS.keys() & launch().attempt_variables().keys()


def test_a_rank_that_is_forked_has_its_own() -> None:
    assert OURS.items() <= launch(NPROC_PER_NODE="2").rank_variables(0).items()
    for node_rank, local_rank in ((0, 1), (1, 0)):
        assert not OURS.keys() & launch(node_rank, NPROC_PER_NODE="2").rank_variables(local_rank).keys()

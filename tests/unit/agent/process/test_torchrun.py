"""Ranks get the variables that torchrun sets; the warm process gets those that are known before an attempt."""

from __future__ import annotations

from pathlib import Path

from tests.signer import GOOD, environment
from trainmaster_operator.agent.process import launcher
from trainmaster_operator.agent.process.launcher import Launch
from trainmaster_operator.agent.settings import AgentSettings, read_settings
from trainmaster_operator.wire.assignment import Assignment

UNEVEN = Assignment.parse({**GOOD, "processes": [8, 2]})


def settings(processes: int) -> AgentSettings:
    variables = {"TRAINMASTER_WORKER": "1", "TRAINMASTER_STATE_DIR": "/state", "NPROC_PER_NODE": str(processes)}
    return read_settings({**environment(), **variables})


def test_a_rank_is_counted_over_all_workers() -> None:
    made = Launch(settings(2), UNEVEN, 1, {}).rank_variables(1)
    assert (made["RANK"], made["LOCAL_RANK"], made["GROUP_RANK"], made["ROLE_RANK"]) == ("9", "1", "1", "9")
    assert (made["WORLD_SIZE"], made["LOCAL_WORLD_SIZE"], made["GROUP_WORLD_SIZE"]) == ("10", "2", "2")
    assert made["TORCHELASTIC_ERROR_FILE"] == "/state/attempt-3/torchrun/warm/attempt_0/1/error.json"


def test_the_warm_process_and_a_rank_have_together_what_a_cold_rank_has() -> None:
    base = {"PATH": "/bin", "RANK": "9", "MASTER_ADDR": "manifest", "FLAVOUR": "npu", "http_proxy": "http://proxy"}
    environ, own = launcher.warm_environment(settings(2), base)
    assert not own & environ.keys()
    second = Launch(settings(2), UNEVEN, 1, base, trainer_port=7)
    rank = second.rank_variables(0)
    assert own == second._replace(node_rank=0).rank_variables(0).keys() > rank.keys()
    assert rank.keys() > second.attempt_variables().keys()
    cold = second.environment()
    added = {"OMP_NUM_THREADS": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "PWD": str(Path.cwd())}
    added["TORCHELASTIC_SIGNALS_TO_HANDLE"] = launcher.SIGNALS
    assert {**environ, **rank} == {**cold, **added, **rank}


def test_what_a_user_has_set_is_kept() -> None:
    given = {"OMP_NUM_THREADS": "4", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_FR_DUMP_TEMP_FILE": "/mine"}
    environ, own = launcher.warm_environment(settings(2), given)
    assert given.items() <= environ.items() and not own & given.keys()


def test_one_rank_may_use_all_cores() -> None:
    assert "OMP_NUM_THREADS" not in launcher.warm_environment(settings(1), {})[0]

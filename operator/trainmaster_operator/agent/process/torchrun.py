"""What torchrun gives a rank is given here to ranks that start without it. Pure.

torch 2.13: torch.distributed.run (`config_from_args`), torch.distributed.launcher.api (`launch_agent`) and
torch.distributed.elastic.agent.server.local_elastic_agent (`_start_workers`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from trainmaster_operator.agent.process.launcher import attempt_dir, attempt_variables, rank_environment
from trainmaster_operator.agent.process.run_ids import run_variables
from trainmaster_operator.agent.settings import Settings
from trainmaster_operator.wire.assignment import Assignment

ROLE = "default"
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


def warm_environment(settings: Settings, base: Mapping[str, str]) -> tuple[dict[str, str], frozenset[str]]:
    """Returns what all ranks of this worker have in their environment in every attempt, and the names of all the rest.

    Some of it is read when a module is imported, or when Python starts, so the warm process has it too.
    """
    any_attempt = Assignment("", 1, (settings.worker,), None, ("",), 0)
    attempts = attempt_variables(settings, any_attempt, 0, base, trainer_port=1)
    own = attempts.keys() | rank_variables(settings, any_attempt, 0, 0, base).keys()
    environ = rank_environment(settings, any_attempt, 0, base)
    if settings.processes > 1:
        environ.setdefault("OMP_NUM_THREADS", "1")
    environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = SIGNALS
    # As the shell does that becomes the rank.
    environ["PWD"] = os.getcwd()
    return {name: value for name, value in environ.items() if name not in own}, frozenset(own)


def rank_variables(
    settings: Settings, assignment: Assignment, node_rank: int, local_rank: int, base: Mapping[str, str]
) -> dict[str, str]:
    """Returns what is a rank's own. `base` has the user's own."""
    processes, nodes = settings.processes, len(assignment.workers)
    world_size = str(assignment.world_size(processes))
    number = assignment.first_rank(node_rank, processes) + local_rank
    rank = str(number)
    return {
        "RANK": rank,
        "LOCAL_RANK": str(local_rank),
        "GROUP_RANK": str(node_rank),
        "ROLE_RANK": rank,
        "ROLE_NAME": ROLE,
        "LOCAL_WORLD_SIZE": str(processes),
        "WORLD_SIZE": world_size,
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": assignment.master,
        "MASTER_PORT": str(assignment.port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": f"attempt-{assignment.attempt}",
        # The store is served by a process of the first worker's agent, and not by rank 0.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": os.path.join(error_folder(settings, assignment.attempt, local_rank), "error.json"),
        **run_variables(settings, number, base),
    }


def error_folder(settings: Settings, attempt: int, local_rank: int) -> str:
    """Returns the folder of a rank's error file, which is where torchrun's would be."""
    return os.path.join(attempt_dir(settings, attempt), "torchrun", "warm", "attempt_0", str(local_rank))

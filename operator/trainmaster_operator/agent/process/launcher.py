"""This module makes an attempt's command lines and environments. It is pure: it starts nothing.

torchrun is used with a static rendezvous and without its own restarts: its in-place restart fails with
"connectFullMesh" (torch 2.13 on gloo), and the operator decides about attempts. Each rank starts through a one-line
shell that reports its pid to the agent, connects the rank's own pipes, and then becomes the rank by `exec`. So the
agent sees every rank's output and end at once, in any version of torch, without waiting for torchrun's polling.

Ranks that start without torchrun get the same variables as from torchrun (torch 2.13: torch.distributed.run,
`config_from_args`; torch.distributed.launcher.api, `launch_agent`;
torch.distributed.elastic.agent.server.local_elastic_agent, `_start_workers`).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from trainmaster_operator.agent.errors import NO_TORCH, LaunchError
from trainmaster_operator.agent.process.children import find_program
from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.names import TORCHRUN_MODULES, is_python

_TORCHRUN = "torchrun"

# $0 is the attempt's folder, and "$@" is the user's command. The pid is read from /proc, because torchrun replaces
# every $$ by $ (torch.distributed.elastic.utils.api.macros).
RANK_WRAPPER = (
    'read -r pid rest </proc/self/stat && printf "%s %s\\n" "$LOCAL_RANK" "$pid" >"$0/ranks" && '
    'exec "$@" >"$0/rank-$LOCAL_RANK.out" 2>"$0/rank-$LOCAL_RANK.err"'
)


class CommandLine(NamedTuple):
    """CommandLine is a launcher's command; `wraps_ranks`: whether ranks announce themselves through the FIFO."""

    arguments: tuple[str, ...]
    wraps_ranks: bool


def attempt_dir(settings: AgentSettings, attempt: int) -> str:
    """Returns the folder of an attempt's logs, pipes, progress and error files."""
    return os.path.join(settings.state_dir, f"attempt-{attempt}")


def command_line(
    settings: AgentSettings, assignment: Assignment, node_rank: int, command: Sequence[str], base: Mapping[str, str]
) -> CommandLine:
    """Returns the command line of one worker's launcher; raises LaunchError for an empty command."""
    if not command or not command[0]:
        raise LaunchError("command not found: the command is empty; set spec.command")
    if settings.launcher == "exec" or starts_torchrun(command):
        # A command that starts torchrun itself is configured by PET_*, because launchers must not be nested.
        return CommandLine(tuple(command), False)
    folder = attempt_dir(settings, assignment.attempt)
    python = _python_of(command)
    torchrun = (python, "-m", "torch.distributed.run") if python else (_TORCHRUN,)
    return CommandLine(
        (
            *torchrun,
            f"--nnodes={len(assignment.workers)}",
            f"--nproc-per-node={settings.processes}",
            f"--node-rank={node_rank}",
            "--rdzv-backend=static",
            f"--rdzv-id=attempt-{assignment.attempt}",
            f"--master-addr={assignment.master}",
            f"--master-port={assignment.port}",
            "--max-restarts=0",
            "--monitor-interval=0.1",
            f"--log-dir={os.path.join(folder, 'torchrun')}",
            "--no-python",
            "/bin/sh",
            "-c",
            _rank_zero(run_variables(settings, assignment.first_rank(node_rank, settings.processes), base))
            + RANK_WRAPPER,
            folder,
            *command,
        ),
        True,
    )


def _rank_zero(variables: Mapping[str, str]) -> str:
    """Returns a shell line that sets these variables in rank 0 only, because torchrun's ranks share an environment."""
    pairs = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    return f'[ "$RANK" != 0 ] || export {pairs}; ' if pairs else ""


def find_launcher(line: CommandLine, environ: Mapping[str, str]) -> str:
    """Returns the path of a command's program; raises LaunchError (NO_TORCH's text if the agent chose torchrun)."""
    try:
        return find_program(line.arguments[0], environ)
    except LaunchError:
        if line.wraps_ranks and line.arguments[0] == _TORCHRUN:
            raise LaunchError(NO_TORCH) from None
        raise


def starts_torchrun(command: Sequence[str]) -> bool:
    """Returns whether the user's command is itself a launcher."""
    if os.path.basename(command[0]) == _TORCHRUN:
        return True
    return _python_of(command) is not None and any(
        flag == "-m" and module in TORCHRUN_MODULES for flag, module in zip(command[1:], command[2:])
    )


def rank_environment(
    settings: AgentSettings, assignment: Assignment, node_rank: int, base: Mapping[str, str], trainer_port: int = 0
) -> dict[str, str]:
    """Returns the environment of an attempt's children: `base` with the attempt's changes."""
    environ = {**base, **attempt_variables(settings, assignment, node_rank, base, trainer_port)}
    if settings.launcher != "exec":
        # torchrun sets RANK for each rank; the manifest's value is for programs that run without a launcher.
        environ.pop("RANK", None)
    environ["TRAINMASTER_STATE_DIR"] = settings.state_dir
    # Otherwise a killed rank loses its buffered last lines, which are the most important ones.
    environ.setdefault("PYTHONUNBUFFERED", "1")
    # An image seldom contains a name for a pod's user, and without a name getpass.getuser() raises KeyError.
    if not any(environ.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME")) and not _has_name(os.getuid()):
        environ["USER"] = environ["LOGNAME"] = str(os.getuid())
    # A rank killed by a fatal signal then prints its position (docs.python.org/3/library/faulthandler.html).
    environ.setdefault("PYTHONFAULTHANDLER", "1")
    # With 3, NCCL's watchdog (torch 2.11 and 2.13) waits a minute after an error or a timeout, and ends the process.
    # With 1, torchrun's value, it first aborts the communicator. This ends the collective, and a queued optimizer step
    # then changes the weights by unreduced gradients, perhaps while a survivor is copying them.
    environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
    return environ


def attempt_variables(
    settings: AgentSettings, assignment: Assignment, node_rank: int, base: Mapping[str, str], trainer_port: int = 0
) -> dict[str, str]:
    """Returns the variables that differ between attempts or workers.

    `base` contains the user's own variables; `trainer_port` is the port for reports of Hugging Face's Trainer, or 0.
    """
    nodes, processes = len(assignment.workers), settings.processes
    folder = attempt_dir(settings, assignment.attempt)
    variables = {
        "MASTER_ADDR": assignment.master,
        "MASTER_PORT": str(assignment.port),
        "NNODES": str(nodes),
        "NODE_RANK": str(node_rank),
        "NPROC_PER_NODE": str(processes),
        "WORLD_SIZE": str(assignment.world_size(processes)),
        "PET_NNODES": str(nodes),
        "PET_NPROC_PER_NODE": str(processes),
        "PET_NODE_RANK": str(node_rank),
        "PET_MASTER_ADDR": assignment.master,
        "PET_MASTER_PORT": str(assignment.port),
        "PET_RDZV_BACKEND": "static",
        "PET_MAX_RESTARTS": "0",
        "TRAINMASTER_ATTEMPT": str(assignment.attempt),
        "TRAINMASTER_PROGRESS_FILE": os.path.join(folder, "progress"),
        "TRAINMASTER_SAVING_FILE": os.path.join(folder, "saving"),
        "TRAINMASTER_STACKS_FILE": os.path.join(folder, "stacks"),
    }
    if settings.launcher == "exec":
        variables["RANK"] = str(assignment.first_rank(node_rank, processes))
        variables["LOCAL_RANK"] = "0"
        variables["LOCAL_WORLD_SIZE"] = str(processes)
        if processes == 1:
            variables.update(run_variables(settings, assignment.first_rank(node_rank, processes), base))
        variables["TORCHELASTIC_ERROR_FILE"] = os.path.join(folder, "error.json")
    for name, value in recorder_environment(folder).items():
        if name not in base:
            variables[name] = value
    variables.update(trainer_environment(trainer_port, trainer_token_file(settings, assignment.attempt), base))
    return variables


def trainer_token_file(settings: AgentSettings, attempt: int) -> str:
    """Returns the path of the token for the reports of Hugging Face's Trainer."""
    return os.path.join(attempt_dir(settings, attempt), "trainer-token")


def _has_name(uid: int) -> bool:
    # Imported here, because a light start is part of every recovery.
    import pwd

    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _python_of(command: Sequence[str]) -> Optional[str]:
    return command[0] if is_python(command[0]) else None


WANDB_VARIABLES = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SWEEP_ID")
"""If the user or a sweep sets one of these, the agent sets none of its own."""


def run_variables(settings: AgentSettings, rank: int, base: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that make all attempts of a job one Weights & Biases run; `base`: the user's variables.

    W&B starts a run for a new id and continues a known one (docs.wandb.ai, "Resume a run": an id has at most 64
    characters and none of / \\ # ? % :). Only rank 0 gets the id: if a script logs from every rank, runs with the same
    id would overwrite each other.
    """
    if rank != 0 or not settings.job_uid or any(name in base for name in WANDB_VARIABLES):
        return {}
    return {"WANDB_RUN_ID": settings.job_uid, "WANDB_RESUME": "allow"}


ROLE = "default"
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


def warm_environment(settings: AgentSettings, base: Mapping[str, str]) -> tuple[dict[str, str], frozenset[str]]:
    """Returns the environment common to all this worker's ranks in every attempt, and the names of all other variables.

    Some variables are read when a module is imported, or when Python starts, so the warm process gets them too.
    """
    any_attempt = Assignment("", 1, (settings.worker,), None, ("",), 0)
    attempts = attempt_variables(settings, any_attempt, 0, base, trainer_port=1)
    own = attempts.keys() | rank_variables(settings, any_attempt, 0, 0, base).keys()
    environ = rank_environment(settings, any_attempt, 0, base)
    if settings.processes > 1:
        environ.setdefault("OMP_NUM_THREADS", "1")
    environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = SIGNALS
    # The shell that becomes a rank sets this too.
    environ["PWD"] = os.getcwd()
    return {name: value for name, value in environ.items() if name not in own}, frozenset(own)


def rank_variables(
    settings: AgentSettings, assignment: Assignment, node_rank: int, local_rank: int, base: Mapping[str, str]
) -> dict[str, str]:
    """Returns a rank's own variables. `base` contains the user's variables."""
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
        # A process of the first worker's agent, and not rank 0, serves the store.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": os.path.join(error_folder(settings, assignment.attempt, local_rank), "error.json"),
        **run_variables(settings, number, base),
    }


def error_folder(settings: AgentSettings, attempt: int, local_rank: int) -> str:
    """Returns the folder of a rank's error file, which torchrun uses too."""
    return os.path.join(attempt_dir(settings, attempt), "torchrun", "warm", "attempt_0", str(local_rank))


PIPE_VARIABLE, DUMP_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DUMP_TEMP_FILE"
"""These name the files through which the agent asks a rank's flight recorder (`progress/recorder`)."""


def recorder_environment(folder: str) -> dict[str, str]:
    """Returns the variables that make torch dump into an attempt's folder; the user's own settings take precedence."""
    stem = os.path.join(folder, "recorder-")
    return {PIPE_VARIABLE: stem, DUMP_VARIABLE: stem}


ADDRESS, PATH = "127.0.0.1", "/v1/trainer-status"
URL, TOKEN = "KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN"
_PROXIES, _NO_PROXIES = ("http_proxy", "HTTP_PROXY"), ("no_proxy", "NO_PROXY")


def trainer_environment(port: int, token_file: str, base: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that make a Trainer report to this port; none if the user has chosen another server.

    If an HTTP proxy is set, they extend `no_proxy`, because it would get these requests too (urllib.request).
    """
    if not port or any(name in base for name in (URL, TOKEN)):
        return {}
    variables = {URL: f"http://{ADDRESS}:{port}{PATH}", TOKEN: token_file}
    if any(base.get(name) for name in _PROXIES):
        spared = next((base[name] for name in _NO_PROXIES if base.get(name)), "")
        if spared != "*":
            variables["no_proxy"] = f"{spared},{ADDRESS}".lstrip(",")
    return variables

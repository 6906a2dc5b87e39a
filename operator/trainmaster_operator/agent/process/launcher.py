"""This module makes an attempt's command lines and environments. It is pure: it starts nothing.

torchrun is used with a static rendezvous and without its own restarts, because its in-place restart fails with
"connectFullMesh" (torch 2.13 on gloo), and because the operator decides about attempts. Each rank starts through a
one-line shell script that reports its pid to the agent, connects the rank's own pipes, and then becomes the rank by
`exec`. So the agent sees every rank's output and end at once, in any version of torch, without waiting for torchrun's
polling.

Ranks that start without torchrun get the variables that torchrun would set (torch 2.13: torch.distributed.run,
`config_from_args`; torch.distributed.launcher.api, `launch_agent`;
torch.distributed.elastic.agent.server.local_elastic_agent, `_start_workers`).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trainmaster_operator.agent.errors import NO_TORCH, LaunchError
from trainmaster_operator.agent.process.children import find_program
from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.names import TORCHRUN_MODULES, is_python

_TORCHRUN = "torchrun"
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
WANDB_VARIABLES = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SWEEP_ID")
"""If the user or a sweep sets one of these variables, the agent sets none of them."""
PIPE_VARIABLE, DUMP_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DUMP_TEMP_FILE"
"""These name the files through which the agent asks a rank's flight recorder (`progress/recorder`)."""
ADDRESS, PATH = "127.0.0.1", "/v1/trainer-status"
URL, TOKEN = "KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN"
_PROXIES, _NO_PROXIES = ("http_proxy", "HTTP_PROXY"), ("no_proxy", "NO_PROXY")

# In this script, $0 is the attempt's folder, and "$@" is the user's command. The pid is read from /proc, because
# torchrun replaces every $$ by $ (torch.distributed.elastic.utils.api.macros).
RANK_WRAPPER = (
    'read -r pid rest </proc/self/stat && printf "%s %s\\n" "$LOCAL_RANK" "$pid" >"$0/ranks" && '
    'exec "$@" >"$0/rank-$LOCAL_RANK.out" 2>"$0/rank-$LOCAL_RANK.err"'
)


class CommandLine(NamedTuple):
    """CommandLine is a launcher's command. `wraps_ranks`: whether its ranks announce themselves through the FIFO."""

    arguments: tuple[str, ...]
    wraps_ranks: bool


class Launch(NamedTuple):
    """Launch is one worker's part of an attempt."""

    settings: AgentSettings
    assignment: Assignment
    node_rank: int
    base: Mapping[str, str]
    """The user's own variables."""
    trainer_port: int = 0
    """The port for reports of Hugging Face's Trainer; 0: none."""

    @property
    def folder(self) -> str:
        """Returns the folder of the attempt's logs, pipes, progress and error files."""
        return os.path.join(self.settings.state_dir, f"attempt-{self.assignment.attempt}")

    @property
    def trainer_token_file(self) -> str:
        """Returns the path of the token for the reports of Hugging Face's Trainer."""
        return os.path.join(self.folder, "trainer-token")

    @property
    def first_rank(self) -> int:
        return self.assignment.first_rank(self.node_rank, self.settings.processes)

    def command_line(self, command: Sequence[str]) -> CommandLine:
        """Returns the launcher's command line; raises LaunchError for an empty command."""
        if not command or not command[0]:
            raise LaunchError("command not found: the command is empty; set spec.command")
        if self.settings.launcher == "exec" or starts_torchrun(command):
            # The command is itself a launcher. Launchers must not be nested, so the variables PET_* configure this one.
            return CommandLine(tuple(command), False)
        arguments = (
            *((command[0], "-m", "torch.distributed.run") if is_python(command[0]) else (_TORCHRUN,)),
            f"--nnodes={len(self.assignment.workers)}",
            f"--nproc-per-node={self.settings.processes}",
            f"--node-rank={self.node_rank}",
            "--rdzv-backend=static",
            f"--rdzv-id=attempt-{self.assignment.attempt}",
            f"--master-addr={self.assignment.master}",
            f"--master-port={self.assignment.port}",
            "--max-restarts=0",
            "--monitor-interval=0.1",
            f"--log-dir={os.path.join(self.folder, 'torchrun')}",
            "--no-python",
            "/bin/sh",
            "-c",
            _rank_zero(self.run_variables(self.first_rank)) + RANK_WRAPPER,
            self.folder,
            *command,
        )
        return CommandLine(arguments, True)

    def environment(self) -> dict[str, str]:
        """Returns the environment of the attempt's children: the user's variables with the attempt's changes."""
        environ = {**self.base, **self.attempt_variables()}
        if self.settings.launcher != "exec":
            # torchrun sets RANK for each rank. The manifest's value is only for programs that run without a launcher.
            environ.pop("RANK", None)
        environ["TRAINMASTER_STATE_DIR"] = self.settings.state_dir
        # Without this, a killed rank would lose its last lines, the most important ones, in its buffer.
        environ.setdefault("PYTHONUNBUFFERED", "1")
        # An image seldom contains a name for the pod's user id, and without a name getpass.getuser() raises KeyError.
        named = any(environ.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME"))
        if not named and not _has_name(os.getuid()):
            environ["USER"] = environ["LOGNAME"] = str(os.getuid())
        # With this, a rank killed by a fatal signal prints its stacks (docs.python.org/3/library/faulthandler.html).
        environ.setdefault("PYTHONFAULTHANDLER", "1")
        # With 3, NCCL's watchdog (torch 2.11 and 2.13) waits a minute after an error or a timeout, and then ends the
        # process. With 1, torchrun's value, the watchdog first aborts the communicator. This ends the collective, so a
        # queued optimizer step changes the weights by unreduced gradients, perhaps while a surviving rank is copying
        # its weights.
        environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
        return environ

    def attempt_variables(self) -> dict[str, str]:
        """Returns the variables that differ between attempts or workers."""
        nodes, processes = str(len(self.assignment.workers)), str(self.settings.processes)
        variables = {
            "MASTER_ADDR": self.assignment.master,
            "MASTER_PORT": str(self.assignment.port),
            "NNODES": nodes,
            "NODE_RANK": str(self.node_rank),
            "NPROC_PER_NODE": processes,
            "WORLD_SIZE": str(self.assignment.world_size(self.settings.processes)),
            "PET_NNODES": nodes,
            "PET_NPROC_PER_NODE": processes,
            "PET_NODE_RANK": str(self.node_rank),
            "PET_MASTER_ADDR": self.assignment.master,
            "PET_MASTER_PORT": str(self.assignment.port),
            "PET_RDZV_BACKEND": "static",
            "PET_MAX_RESTARTS": "0",
            "TRAINMASTER_ATTEMPT": str(self.assignment.attempt),
            "TRAINMASTER_PROGRESS_FILE": os.path.join(self.folder, "progress"),
            "TRAINMASTER_SAVING_FILE": os.path.join(self.folder, "saving"),
            "TRAINMASTER_STACKS_FILE": os.path.join(self.folder, "stacks"),
            "TRAINMASTER_RANKS_FILE": os.path.join(self.folder, "ranks"),
        }
        if self.settings.launcher == "exec":
            variables["RANK"] = str(self.first_rank)
            variables["LOCAL_RANK"] = "0"
            variables["LOCAL_WORLD_SIZE"] = processes
            if processes == "1":
                variables.update(self.run_variables(self.first_rank))
            variables["TORCHELASTIC_ERROR_FILE"] = os.path.join(self.folder, "error.json")
        recorder = recorder_environment(self.folder).items()
        variables.update({name: value for name, value in recorder if name not in self.base})
        return {**variables, **trainer_environment(self.trainer_port, self.trainer_token_file, self.base)}

    def rank_variables(self, local_rank: int) -> dict[str, str]:
        """Returns the attempt's variables and a rank's own, for a rank that starts without torchrun."""
        variables, rank = self.attempt_variables(), self.first_rank + local_rank
        return {
            **variables,
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "GROUP_RANK": str(self.node_rank),
            "ROLE_RANK": str(rank),
            "ROLE_NAME": "default",
            "LOCAL_WORLD_SIZE": variables["NPROC_PER_NODE"],
            "GROUP_WORLD_SIZE": variables["NNODES"],
            "ROLE_WORLD_SIZE": variables["WORLD_SIZE"],
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": f"attempt-{self.assignment.attempt}",
            # The store is served by a process of the first worker's agent, not by rank 0.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_ERROR_FILE": os.path.join(self.error_folder(local_rank), "error.json"),
            **self.run_variables(rank),
        }

    def error_folder(self, local_rank: int) -> str:
        """Returns the folder of a rank's error file, the same as torchrun's."""
        return os.path.join(self.folder, "torchrun", "warm", "attempt_0", str(local_rank))

    def run_variables(self, rank: int) -> dict[str, str]:
        """Returns the variables that make all attempts of a job one Weights & Biases run.

        W&B starts a run for a new id and continues the run of a known id (docs.wandb.ai, "Resume a run": an id has at
        most 64 characters and none of / \\ # ? % :). Only rank 0 gets the id, because if a script logs from every rank,
        runs with the same id would overwrite each other.
        """
        if rank != 0 or not self.settings.job_uid or any(name in self.base for name in WANDB_VARIABLES):
            return {}
        return {"WANDB_RUN_ID": self.settings.job_uid, "WANDB_RESUME": "allow"}


def _rank_zero(variables: Mapping[str, str]) -> str:
    """Returns a shell line that sets these variables in rank 0 only, because torchrun's ranks share an environment."""
    pairs = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    return f'[ "$RANK" != 0 ] || export {pairs}; ' if pairs else ""


def find_launcher(line: CommandLine, environ: Mapping[str, str]) -> str:
    """Returns the path of a command's program. Raises LaunchError, with NO_TORCH if the agent chose torchrun."""
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
    modules = (module for flag, module in zip(command[1:], command[2:]) if flag == "-m")
    return is_python(command[0]) and any(module in TORCHRUN_MODULES for module in modules)


def _has_name(uid: int) -> bool:
    # Imported here, because a short start of the agent shortens every recovery.
    import pwd

    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def warm_environment(settings: AgentSettings, base: Mapping[str, str]) -> tuple[dict[str, str], frozenset[str]]:
    """Returns the environment common to this worker's ranks in every attempt, and the names of all other variables.

    The warm process gets this environment, because some variables are read when Python starts or a module is imported.
    """
    any_launch = Launch(settings, Assignment("", 1, (settings.worker,), None, ("",), 0), 0, base, trainer_port=1)
    own, environ = any_launch.rank_variables(0).keys(), any_launch.environment()
    if settings.processes > 1:
        environ.setdefault("OMP_NUM_THREADS", "1")
    environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = SIGNALS
    # A rank has this variable too, because the shell that becomes the rank sets it.
    environ["PWD"] = os.getcwd()
    return {name: value for name, value in environ.items() if name not in own}, frozenset(own)


def recorder_environment(folder: str) -> dict[str, str]:
    """Returns the variables that make torch dump into an attempt's folder; the user's own settings take precedence."""
    stem = os.path.join(folder, "recorder-")
    return {PIPE_VARIABLE: stem, DUMP_VARIABLE: stem}


def trainer_environment(port: int, token_file: str, base: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that make a Trainer report to this port; empty if the user has chosen another server.

    If an HTTP proxy is set, they extend `no_proxy`, because these requests would go to the proxy otherwise
    (urllib.request).
    """
    if not port or any(name in base for name in (URL, TOKEN)):
        return {}
    variables = {URL: f"http://{ADDRESS}:{port}{PATH}", TOKEN: token_file}
    if any(base.get(name) for name in _PROXIES):
        spared = next((base[name] for name in _NO_PROXIES if base.get(name)), "")
        if spared != "*":
            variables["no_proxy"] = f"{spared},{ADDRESS}".lstrip(",")
    return variables

"""Ranks are started with this environment and these streams, by the warm process or by the agent itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from trainmaster_operator.agent.errors import NO_TORCH, LaunchError
from trainmaster_operator.agent.process import children, group_file, launcher, torchrun
from trainmaster_operator.agent.settings import Settings
from trainmaster_operator.wire.assignment import Assignment

if TYPE_CHECKING:
    from trainmaster_operator.agent.warm.warm_process import WarmProcess

STORE = "store"
"""By this name the process that serves torch's store announces itself (`warm/stage/forking`), and its log is kept."""


class RankStarts:
    """RankStarts is of one run. All paths lead into the folder of the attempt that the run was started for."""

    def __init__(
        self,
        settings: Settings,
        assignment: Assignment,
        node_rank: int,
        command: Sequence[str],
        base_environ: Mapping[str, str],
        trainer_port: int,
    ) -> None:
        self.assignment = assignment
        """The newest attempt's."""
        self.folder = launcher.attempt_dir(settings, assignment.attempt)
        self.group_file = os.path.join(self.folder, "group")
        self._settings = settings
        self._started_for = assignment.attempt
        self._node_rank = node_rank
        self._command = command
        self._base_environ = base_environ
        self._trainer_port = trainer_port

    @property
    def ranks(self) -> range:
        """Returns this worker's global ranks."""
        first = self.assignment.first_rank(self._node_rank, self._settings.processes)
        return range(first, first + self._settings.processes)

    @property
    def present(self) -> tuple[int, ...]:
        """Returns the local ranks that are in the attempt's group."""
        return self.assignment.present(self._node_rank, self._settings.processes)

    @property
    def serves_store(self) -> bool:
        """Returns whether torch's store is this worker's to serve: where torchrun would, on the first one.

        In a continued attempt the lowest rank of the group serves it itself.
        """
        return self._node_rank == 0 and self.assignment.continues is None

    def write_group(self) -> None:
        """Write down which ranks are in a continued attempt's group. Raises OSError."""
        if self.assignment.continues is not None:
            group_file.write_group(self.group_file, self.assignment, self._settings.processes)

    def group_variables(self, local_rank: int) -> dict[str, str]:
        """Returns what a rank finds its group by."""
        return group_file.rank_variables(self.group_file, joins=local_rank not in self.present)

    def order(self, local_rank: int) -> dict[str, Any]:
        """Returns what the warm process has to know of a rank."""
        stem = os.path.join(self.folder, f"rank-{local_rank}")
        environ = self._own_variables(local_rank)
        return {"localRank": local_rank, "environ": environ, "stdout": f"{stem}.out", "stderr": f"{stem}.err"}

    def store_order(self, log: str) -> Optional[dict[str, Any]]:
        """Returns the same of the process that serves the store, which prints into `log`; None where there is none."""
        if not self.serves_store:
            return None
        return {"environ": self._own_variables(0), "stdout": os.devnull, "stderr": log}

    def spawn_rank(self, local_rank: int, warm: WarmProcess) -> int:
        """Start a rank without the warm process. Raises LaunchError or OSError."""
        if warm.lacks_torch:
            raise LaunchError(NO_TORCH)
        stem = os.path.join(self.folder, f"rank-{local_rank}")
        streams = {1: os.open(f"{stem}.out", os.O_WRONLY), 2: os.open(f"{stem}.err", os.O_WRONLY)}
        return self._spawn(self._command, local_rank, streams)

    def spawn_store(self, log: str, warm: WarmProcess) -> int:
        """Start the process that serves the store, 0 where there is none. Raises LaunchError or OSError."""
        if not self.serves_store or warm.lacks_torch:
            return 0
        stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        return self._spawn(warm.store_command(), 0, {1: stream, 2: stream})

    def remove_traces(self, local_rank: int) -> None:
        """Remove what a process has left behind in whose place another one is started."""
        rank = self.ranks[local_rank]
        names = [f"progress.{rank}", f"stacks.{rank}", f"saving.{rank}", *(["progress"] if local_rank == 0 else [])]
        error_folder = torchrun.error_folder(self._settings, self._started_for, local_rank)
        for path in (*(os.path.join(self.folder, name) for name in names), os.path.join(error_folder, "error.json")):
            group_file.unlink(path)
            group_file.unlink(f"{path}.step")

    def _spawn(self, command: Sequence[str], local_rank: int, streams: Mapping[int, int]) -> int:
        try:
            common, _ = torchrun.warm_environment(self._settings, self._base_environ)
            environ = {**common, **self._own_variables(local_rank)}
            program = children.find_program(command[0], environ)
            return children.spawn(program, tuple(command), environ, streams, in_session=True)
        finally:
            for stream in set(streams.values()):
                os.close(stream)

    def _own_variables(self, local_rank: int) -> dict[str, str]:
        """Returns what of a rank's environment is its own; makes the folder that is named there."""
        settings, node_rank, base = self._settings, self._node_rank, self._base_environ
        os.makedirs(torchrun.error_folder(settings, self._started_for, local_rank), exist_ok=True)
        assignment = self.assignment._replace(attempt=self._started_for)
        return {
            **launcher.attempt_variables(settings, assignment, node_rank, base, self._trainer_port),
            **torchrun.rank_variables(settings, assignment, node_rank, local_rank, base),
            **self.group_variables(local_rank),
            "TRAINMASTER_ATTEMPT": str(self.assignment.attempt),
        }

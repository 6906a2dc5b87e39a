"""What an attempt's ranks find when they start: the master's address, the job's run in MLflow, and who listens to the
Trainer of Hugging Face."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Optional

from trainmaster_operator.agent.loop import Loop
from trainmaster_operator.agent.network.resolve import lookup_hosts
from trainmaster_operator.agent.process.launcher import attempt_dir, trainer_token_file
from trainmaster_operator.agent.settings import Settings
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.log_rules import NONE

if TYPE_CHECKING:
    from trainmaster_operator.agent.progress.trainer_server import TrainerServer


class Surroundings:
    """Surroundings outlive attempts. `report` gets what the Trainer reports, `complain` a sentence for the log."""

    def __init__(
        self, loop: Loop, settings: Settings, report: Callable[[Any], None], complain: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._report = report
        self._complain = complain
        self._trainer: Optional[TrainerServer] = None
        self._mlflow_run: Optional[Mapping[str, str]] = None
        """What names the job's run in MLflow, once it was found."""

    def with_address(self, assignment: Assignment, node_rank: int) -> Assignment:
        """Returns an assignment with the master's address in place of its name, where it is known."""
        address = lookup_hosts(self._settings.hosts_file, assignment.master)
        if assignment.master == assignment.hosts[node_rank]:
            # Rank 0 doesn't wait for its own name: DNS, or the hosts file, may not have it for a while, and its store
            # would look for itself in vain.
            address = self._settings.pod_ip or address
        hosts = list(assignment.hosts)
        hosts[assignment.master_place] = address or assignment.master
        return assignment._replace(hosts=tuple(hosts))

    def mlflow_run(self, environ: Mapping[str, str], node_rank: int) -> Mapping[str, str]:
        """Returns what names the job's run in MLflow to the worker of rank 0, where the pods name an experiment."""
        if self._mlflow_run is None and node_rank == 0 and "MLFLOW_TRACKING_URI" in environ:
            # Here, because urllib would cost every agent's start 30 ms.
            from trainmaster_operator.agent.process import mlflow_run
            from trainmaster_operator.agent.process.run_ids import MLFLOW_FOUND

            if mlflow_run.is_wanted(environ):
                found, problem = mlflow_run.find_in_time(environ, self._settings.job, self._settings.job_uid)
                if found:
                    self._mlflow_run = {MLFLOW_FOUND: found}
                else:
                    self._complain(f"the job's run in MLflow isn't known, so this attempt makes its own: {problem}")
        return (self._mlflow_run or {}) if node_rank == 0 else {}

    def serve_trainer(self, attempt: int) -> int:
        """Listen for what Hugging Face's Trainer reports of this attempt; returns the port, 0 where nobody listens."""
        settings = self._settings
        if settings.progress_preset == NONE:
            return 0
        # Here, because an agent that waits for its first assignment doesn't need it.
        from trainmaster_operator.agent.progress.trainer_server import TrainerServer

        if self._trainer is None:
            self._trainer = TrainerServer(self._loop)
        try:
            os.makedirs(attempt_dir(settings, attempt), exist_ok=True)
            self._trainer.begin(trainer_token_file(settings, attempt), self._report)
        except OSError:
            # The launch fails for the same reason, and says it.
            return 0
        return self._trainer.open()

"""An attempt's processes on this worker: what is observed goes into the executor's queue, nothing is decided here.

- `setup_line` runs the line of shell that comes before the first attempt, and keeps the environment that it leaves.
- `launcher` says what to execute, and with which environment; pure.
- `torchrun` says what torchrun adds to that environment, for ranks that start without it; pure.
- `run_ids` says which run of an experiment tracker rank 0 goes on with; pure. `mlflow_run` finds it in MLflow.
- `surroundings` is what ranks find when they start: the master's address, the run in MLflow, the Trainer's server.
- `run` is the processes of one attempt, or of those that continue it: it starts, signals and examines them.
  `rank_processes` has the ranks among them, and watches them until they end. `rank_starts` says with which environment
  and streams each rank starts, and `group_file` which group it is in. `saving` is how a rank asks for time to write its
  state.
- `attempt_output` is what they print and leave behind, which says why a rank ended; it reads `error_files`.
- `children` starts and reaps processes, and `cgroup` has the kernel's counters; `output` passes on and keeps what is
  printed.
- `environment` describes what ranks run in, to be compared across workers.
- `code` unpacks the code that comes without an image, into the folder that all of them start in.
- `saved_report` is the file from which the next life of the agent learns what ran here.
"""

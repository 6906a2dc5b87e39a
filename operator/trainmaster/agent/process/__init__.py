"""An attempt's processes on this worker: what is observed goes into the executor's queue, nothing is decided here.

- `setup_line` runs the line of shell that comes before the first attempt, and keeps the environment that it leaves.
- `launcher` says what to execute, and with which environment; pure.
- `torchrun` says what torchrun adds to that environment, for ranks that start without it; pure.
- `run` is the processes of one attempt: it starts, watches and signals them, and gathers what they leave behind, from
  `error_files` and `cgroup`; `saving` is how a rank asks for time to write its state.
- `children` starts and reaps processes; `output` passes on and keeps what they print.
- `environment` describes what ranks run in, to be compared across workers.
- `saved_report` is the file from which the next life of the agent learns what ran here.
"""

"""An attempt's processes on this worker put events into the executor's queue; nothing is decided here.

- `setup_line` runs the shell line before the first attempt, and keeps the environment that it leaves.
- `launcher` makes the command line and the environment of a launcher, or of ranks that start without one. Pure.
- `run` has the processes of one attempt and of its continuations: it starts, signals and examines them.
  `rank_processes` starts the ranks among them, and watches them until they end.
- `output` prints and keeps their output; `stacks` finds stacks in it.
- `state_folder` has the files that connect an agent's lives, and the agent with its ranks.
- `children` starts and reaps processes; `kernel` reads the kernel's data about them, and about memory.
- `environment` describes the ranks' environment, for comparison across workers.
- `code` unpacks code that isn't part of an image, into the common working directory.
"""

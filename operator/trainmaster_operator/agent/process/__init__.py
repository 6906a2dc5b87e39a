"""This package runs an attempt's processes on this worker, and puts events into the executor's queue.

- `setup_line` runs a shell line before the first attempt, and keeps the environment that the line has set.
- `launcher` makes the command line and the environment of a launcher, or of ranks without a launcher. Pure.
- `run` starts, signals and examines the processes of one attempt and of the attempts that continue it.
  `rank_processes` starts the ranks, and watches them until they end.
- `output` prints and keeps the processes' output; `stacks` finds stacks in it.
- `state_folder` reads and writes the files that an agent leaves for the next agent, and those shared with ranks.
- `children` starts and reaps processes; `kernel` reads the kernel's data about processes and about memory.
- `system` samples the worker's processor, memory and network; `gpus` samples its GPUs.
- `preflight` describes the ranks' environment, for comparison across workers.
- `code` unpacks the user's code into the common working directory, if the code isn't part of the image.
"""

"""An attempt's processes on this worker: what is observed goes into the executor's queue, nothing is decided here.

- `setup_line` runs the line of shell that comes before the first attempt, and keeps the environment that it leaves.
- `launcher` makes the command line and the environment of a launcher, or of ranks that start without one. Pure.
- `run` has the processes of one attempt, or of those that continue it: it starts, signals and examines them.
  `rank_processes` starts the ranks among them, and watches them until they end.
- `output` passes on and keeps what they print; `stacks` finds stacks in that.
- `state_folder` has the files by which an agent's lives and its ranks know of each other.
- `children` starts and reaps processes; `kernel` shows what the kernel says of them, and of memory.
- `environment` describes what ranks run in, to be compared across workers.
- `code` unpacks the code that comes without an image, into the folder that all of them start in.
"""

"""The stage runs in the warm process before `__main__` exists, from a folder in that process's search path.

The stage runs in the job's own Python, any version from 3.9 on, and imports nothing of the agent. In a rank, the stage
imports the image's own `sitecustomize`, if there is one, and returns; the interpreter then continues. Read the modules
in this order:

- The interpreter imports `sitecustomize` by itself, which enters `orders`, the loop that handles the agent's orders to
  import modules and to fork ranks.
- `forkable` imports modules and decides whether the process may fork; `devices` answers the modules' CUDA queries.
- `forking` forks an attempt's ranks and the process that serves their store, and gives each rank its own state.
- `store` serves torch's store to an attempt's ranks.
- `this_process`, which the other modules use, reads this process's data in /proc.

The channel to the agent is a stream of JSON objects, one per line. The agent sends `fork` and `import`. The warm
process sends `ready`, `forked` (with the reason if it has forked none), `imported`, `unforkable` and `failed`. It ends
when the channel is closed.
"""

from __future__ import annotations

import signal

PACKAGE = "trainmaster_stage"
"""The stage's package name in the warm process."""
SOURCES = ("__init__", "devices", "forkable", "forking", "orders", "store", "this_process")
"""The package's modules; `sitecustomize` is in the parent folder."""
VARIABLE = "TRAINMASTER_WARM"
"""The variable that names the warm process's configuration file. The stage removes it from the environment at once."""
MARK = "TRAINMASTER_ATTEMPT"
"""The variable by which the next agent finds the process, because /proc shows the process's environment."""
PROBE = "probe"
"""The value that tests whether this Python imports the stage at all."""
EXIT_PROBED, EXIT_DEAF = 77, 78
"""A probe's answers: this Python imports the stage, or it doesn't. Any other exit code is no answer."""
PROBE_PROGRAM = f"import sys; sys.exit(1 if sys.argv[1] in sys.path else {EXIT_DEAF})"
"""A probe runs this program if the stage hasn't stopped it. The argument is the stage's folder. If the folder isn't on
sys.path, this Python ignores PYTHONPATH."""
CHANNEL = 3
"""The descriptor of the channel."""
LEARN_SIGNAL = signal.SIGRTMAX - 3
"""The signal that asks a rank for its modules. The agent first checks that the rank catches it."""

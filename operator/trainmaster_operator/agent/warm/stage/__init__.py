"""The stage runs in the warm process before `__main__` exists. It is copied into a folder that this process searches.

It runs in the job's own Python, any version from 3.9 on, and imports nothing of the agent. The warm process imports
modules on order, one after the other, and forks ranks on order. In a rank `enter` returns, `sitecustomize` is imported
again, now the image's own if there is one, and the interpreter continues. In this order:

- The interpreter imports `sitecustomize` by itself, which enters `orders`: the warm process, a loop over the agent's
  orders on the channel.
- `forkable` imports modules and decides whether the process may fork; `devices` answers their questions about CUDA.
- `forking` forks an attempt's ranks and the process of their store, and gives each rank its own state.
- `store` serves torch's store to an attempt's ranks.
- `this_process`, below all others, reads /proc about this process.

The channel is a stream of JSON objects, one a line. The agent sends `fork` and `import`; the warm process answers with
`ready`, `forked`, `refused`, `imported`, `unforkable` and `failed`. It ends when the channel does.
"""

from __future__ import annotations

import signal

PACKAGE = "trainmaster_stage"
"""Its name in the warm process."""
SOURCES = ("__init__", "devices", "forkable", "forking", "orders", "store", "this_process")
"""Its modules there; `sitecustomize` lies beside them."""
VARIABLE = "TRAINMASTER_WARM"
"""Names the file with the warm process's configuration; taken out of the environment at once."""
MARK = "TRAINMASTER_ATTEMPT"
"""By this in what /proc shows of its environment the agent's next life finds the process."""
PROBE = "probe"
"""The value that asks whether this Python imports the stage at all."""
EXIT_PROBED, EXIT_DEAF = 77, 78
"""A probe's answers: this Python stops in the stage, or never gets there. Any other end is no answer."""
PROBE_PROGRAM = f"import sys; sys.exit(1 if sys.argv[1] in sys.path else {EXIT_DEAF})"
"""A probe that doesn't stop runs this; its argument is the stage's folder, which a deaf Python lacks on sys.path."""
CHANNEL = 3
"""The descriptor of the channel."""
LEARN_SIGNAL = signal.SIGRTMAX - 3
"""Asks a rank for its modules; the agent checks first that it is caught."""

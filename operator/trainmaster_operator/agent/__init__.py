"""The agent runs as PID 1 in every worker (docs/architecture.md, "The agent"; docs/protocol.md).

It brings its ranks to the state that the highest known assignment requests, reports how they ended, and never trains an
attempt twice. It uses only the standard library and runs on Python 3.9 and later, because it runs in users' images.
Each package imports only those below it (an import-linter contract); from the top:

- `main` is the command line; `executor` runs the loop, the queue of events, and the actions that the planner requests.
- `network/` is the leader and its followers, HTTP for the operator, and the way to the leader.
- `warm/` keeps a process that has imported all slow modules, and forks ranks from it.
- `hang/` finds ranks that make no progress, and which of all ranks stopped first.
- `progress/` finds the progress of ranks whose script doesn't report it.
- `process/` runs an attempt: the setup line, the launcher, its ranks, their output and the files that they leave.
- `planner/` decides: `state` is the agent's knowledge, `events` change it, `plan` chooses the next actions. Pure.
- `library/` makes `trainloop.recovery` importable for the job's Python. `build` makes the zipapp.
- `settings` come from the manifest; `authority` reads assignments and verifies them by `ed25519`.
- `loop` waits for descriptors, timers and signals; `connection` and `http` build on it. `errors` end the agent or a
  launch.

Values are NamedTuples, because a hundred of them add 9 ms to a start, and a hundred frozen dataclasses would add 55 ms.
"""

__version__ = "0.1.0"

"""The agent runs as PID 1 in every worker (docs/architecture.md, "The agent"; docs/protocol.md).

It brings its ranks to the state that the highest assignment it has seen asks for, reports how they ended, and never
trains an attempt twice. Standard library only, Python 3.9 and later, because it runs in users' images. Each room
imports only those below it (an import-linter contract); from the top:

- `main` is the command line; `executor` has the loop, the queue of events, and the actions that the planner asks for.
- `network/` is the leader and its followers, HTTP for the operator, and the way to the leader.
- `warm/` keeps a process from which ranks are forked, with everything slow imported.
- `hang/` finds ranks that make no progress, and which of all ranks stopped first.
- `progress/` finds out how far ranks are whose script says nothing.
- `process/` runs an attempt: the setup line, the launcher, its ranks, what they print and leave behind.
- `planner/` decides: what is known (`state`), what happened (`events`), what to do (`plan`). Pure.
- `library/` brings `trainloop.recovery` to where the job's Python finds it. `build` makes the zipapp.
- `settings` are the manifest's; `authority` reads assignments and verifies them by `ed25519`.
- `loop` waits for descriptors, timers and signals; `connection` and `http` are above it. `errors` end the agent or a
  request.

Values are NamedTuples: of a start, a hundred of them cost 9 ms, and frozen dataclasses 55.
"""

__version__ = "0.1.0"

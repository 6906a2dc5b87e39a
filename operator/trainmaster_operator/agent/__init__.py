"""The agent runs as PID 1 in every worker (docs/architecture.md, "The agent"; docs/protocol.md).

It brings its ranks to the state that the highest assignment it has seen asks for, reports how they ended, and never
trains an attempt twice. Standard library only, Python 3.9 and later, because it runs in users' images. In this order:

- `planner/` decides: what is known (`state`), what happened (`events`), what is to be done (`plan`). Pure.
- `executor` is one loop, one queue of events, and the actions that the planner asks for. `main` is the command line.
- `process/` runs an attempt: the setup line, the launcher, its ranks, what they print and leave behind.
- `warm/` keeps a process from which ranks are forked, with everything slow imported.
- `library/` brings `trainloop.recovery` to where the job's Python finds it.
- `network/` is the leader and its followers, HTTP for the operator, and the way to the leader.
- `progress/` knows how far ranks are whose script says nothing.
- `hang/` finds ranks that make no progress, and which of all ranks stopped first.
- `settings` is what the manifest says; `assignment` reads the assignment's file, `authority` and `ed25519` verify it.
- `loop` is below all, `errors` are what ends the agent or a request, `build` makes the zipapp.

Values are NamedTuples: of a start, a hundred of them cost 9 ms, and frozen dataclasses 55.
"""

__version__ = "0.1.0"

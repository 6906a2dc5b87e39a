"""The agent: what runs as PID 1 in every worker (docs/protocol.md, "The agents' port"; DESIGN.md, sections 4 and 7).

It brings its ranks to the state that the highest assignment it has seen asks for, says how they ended, and never
trains an attempt twice. Standard library only, Python 3.9 and later, because it runs in users' images.

How the pieces work together, from the outside in:

- `main` reads the command line and the environment (`settings`), and builds an `executor.Worker`.
- `worker` is the state machine: highest assignment + mark (`marks`) -> start, stop, report, exit.
- `run` is one attempt on this worker: `launcher` says what to execute, `children` executes and reaps it, `output`
  passes its lines on, `verdict` says why it ended, `observation` watches it.
- `server` (HTTP), `lead` (the table of all workers) and `link` (the way to the lead) are the fast way of reporting.
- `loop` is the one event loop below all of them; nothing blocks in it.

Values are `NamedTuple`s, not dataclasses: importing `dataclasses` costs 8 ms of an agent's start of 50.
"""

__version__ = "0.1.0"

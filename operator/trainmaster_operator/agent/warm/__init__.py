"""Ranks start warm: the agent keeps one process of the job's own Python, and forks the ranks from it.

The agent starts it as the user's own command line with `stage` as its `sitecustomize`, so the interpreter stops before
`__main__` exists, imports slow modules, and waits for orders. A forked rank returns from `sitecustomize`, and the
interpreter continues as usual, so nothing has to imitate its treatment of a command line. In this order:

- `command` decides whether a command can be warm, and why not; pure.
- `stage/` is the half that runs in the job's Python; it imports nothing of the agent.
- `learning` asks a rank for its imports at its first step.
- `warm_process` is the agent's half: it starts the process, sends it orders, and survives all of its failures.
"""

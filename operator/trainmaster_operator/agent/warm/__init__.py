"""Ranks start warm: the agent keeps a process of the job's own Python, and that process forks the ranks.

The agent starts the process by the user's own command line with `stage` as its `sitecustomize`, so the interpreter
stops before `__main__` exists, imports slow modules, and waits for orders. A forked rank returns from `sitecustomize`,
and the interpreter then handles the command line as usual. In this order:

- `command` decides whether a command can start warm, and why not; pure.
- `stage/` runs in the job's Python; it imports nothing of the agent.
- `learning` asks a rank for its imports at its first step.
- `warm_process` runs in the agent: it starts the process, sends it orders, and handles all of its failures.
"""

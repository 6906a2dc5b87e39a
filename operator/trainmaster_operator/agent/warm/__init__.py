"""Ranks start warm: beside them the agent keeps one process of the job's own Python, from which they are forked.

It is started as the user's own command line with `stage` as its `sitecustomize`, so the interpreter stops before
`__main__` exists, imports what is slow, and waits for orders. A forked rank returns from `sitecustomize`, and the
interpreter continues as it always does: nothing of what it does with a command line is imitated. In this order:

- `command` decides whether a command can be warm, and why not; pure.
- `stage/` is the half that runs in the job's Python; it imports nothing of the agent.
- `learning` asks a rank what it has imported when it does its first step.
- `warm_process` is the agent's half: it starts the process, sends it orders, and survives whatever becomes of it.
"""

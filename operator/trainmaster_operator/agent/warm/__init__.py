"""Ranks start warm: the agent keeps a process of the job's own Python, and that process forks the ranks.

The agent starts the warm process with the user's own command line, and with `stage` as its `sitecustomize`. So, before
`__main__` exists, the process imports slow modules and waits for orders. A forked rank returns from `sitecustomize`,
and the interpreter then handles the command line as usual. Read the modules in this order:

- `command` decides whether a command can start warm, and if not, why.
- `stage/` runs in the job's Python, and imports nothing of the agent.
- `learning` asks a rank, at its first step, which modules it has imported.
- `warm_process` runs in the agent: it starts the process, sends it orders, and handles all of its failures.
"""

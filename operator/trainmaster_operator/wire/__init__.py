"""The operator and the agents exchange these messages and both import this package (docs/protocol.md explains them).

The package uses only the standard library, runs on Python 3.9, and is pure. Messages are NamedTuples. Read the modules
in this order:

- `limits`, `names`: the constants. `log_rules`: patterns that find progress in ranks' output. `tracebacks` finds the
  exception that ended a rank.
- `values`: readers of untrusted JSON, and the one exception that they raise.
- `assignment` (operator -> agents) and `signing`; `report`, `ranks` and `system` (agents -> operator).
- `stream` (leader -> operator) and `joining` (between a leader and its followers): the lines that contain these
  messages.

`X.parse(data)` checks and bounds decoded JSON and raises only `ProtocolError`; `x.to_wire()` is the inverse. This file
imports nothing, because every module slows an agent's start.
"""

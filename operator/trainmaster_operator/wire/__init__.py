"""Operator and agents send each other these messages, and both import them from here (docs/protocol.md is the prose).

Standard library only, Python 3.9, frozen NamedTuples, pure. In the order to read:

- `limits`, `names`: the facts. `log_rules`: patterns that read progress out of what ranks print.
- `values`: readers of JSON that others wrote, and the one exception that they raise.
- `assignment` (operator -> agents) and `signing`; `report` and `ranks` (agents -> operator).
- `stream` (leader -> operator) and `joining` (between a leader and its followers) are the lines that hold them.

`X.parse(data)` checks and bounds decoded JSON and raises `ProtocolError`, nothing else; `x.to_wire()` is the JSON
object again. Nothing is imported here: an agent's start pays for every module.
"""

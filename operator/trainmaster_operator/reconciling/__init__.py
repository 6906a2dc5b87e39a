"""The pure core decides what to do for a job from its observations. It has no I/O, no clock and no kopf.

Read in this order:

| module | contents |
|---|---|
| `decide` | the entry point `decide`, which orders policies and actions and computes the time of the next decision |
| `observed` | the input of `decide`: the snapshot, and the facts that policies derive from it |
| `policies` | the responses to a failure, a lost pod, a suspension or a resize |
| `transition` | a policy's answer: a phase, a reason and a change of the status |
| `status` | the next status: counts, progress, accounting of time; and the events |
| `actions` | the actions that follow the write of the status: assignments, children, deletions |
| `decision` | the output of `decide` |
"""

from trainmaster_operator.reconciling.decide import decide

__all__ = ["decide"]

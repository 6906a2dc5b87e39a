"""The pure core decides what to do for a job from its observations. It has no I/O, no clock and no kopf.

Read in this order:

| module | contents |
|---|---|
| `decide` | `decide`, the entry point: the order of policies and of actions, and when to decide again |
| `observed` | its input: the snapshot, and the facts that policies read from it |
| `policies` | the responses to a failure, a lost pod, a suspension or a resize |
| `transition` | a policy's answer: a phase, a reason and a change of the status |
| `status` | the next status: counts, progress, accounting of time; and the events |
| `actions` | the actions after the status is written: assignments, children, deletions |
| `decision` | its output |
"""

from trainmaster_operator.reconciling.decide import decide

__all__ = ["decide"]

"""In the pure core what was observed of a job becomes what is done for it; there is no I/O, no clock, no kopf.

Read in this order:

| module | what it holds |
|---|---|
| `decide` | `decide`, the way in: the order of the policies, and of the actions |
| `observed` | its input: the snapshot, and the facts that the policies read from it |
| `policies` | one module for each policy: what a failure, a lost pod, a suspension, a resize lead to |
| `transition` | the answer of a policy: a phase, a reason, and a typed change of the status |
| `status` | the next status: conditions, progress, the books of time; and the events |
| `actions` | what is done after the status is written: assignments, children, deletions |
| `decision` | its output |
| `reasons` | every reason for which a worker or a job can end, and the default answer |
| `timers`, `times`, `messages` | when to decide again; times as numbers and as text; lists of names in messages |
"""

from trainmaster_operator.reconciling.decide import decide

__all__ = ["decide"]

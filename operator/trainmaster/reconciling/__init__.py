"""The pure core: what was observed of a job -> what to do and what to report. No I/O, no clock, no kopf.

`decide` is the way in; `snapshot` is its input, `decision` its output. `situation` gathers the facts, each policy has a
module of its own (`attempts`, `attribution`, `failure_rules`, `startup`, `success`, `suspension`, `deadlines`),
`report` makes the status, `time_spent` the books of where the time went, `children` and `assignments` the actions,
`events` what is told, `timers` when to look again.
"""

from trainmaster.reconciling.decide import decide

__all__ = ["decide"]

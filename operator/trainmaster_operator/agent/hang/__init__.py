"""A hung rank lives but makes no progress; this package finds what ranks wait for, and which rank the others wait for.

These modules are pure; read them in this order:

- `hung_rank` finds which of all ranks stopped first, or that there is good reason to wait.
- `diagnosis` contains the leader's part (the question to all workers, their answers, the conclusion) and the worker's
  part: when to ask, when to judge without the leader, when to report.

The same diagnosis serves two limits: after the learnt one (`agent/progress/usual`) people are informed, and after the
limit of a hang the attempt ends.

The other modules use files and processes. `watch` carries out the decisions of `diagnosis`; it reads the ranks'
progress (`agent/progress`) through `observation`, their stacks through `evidence`, and whether they do anything through
`vitals`.
"""

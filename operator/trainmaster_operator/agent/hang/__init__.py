"""A hung rank lives but makes no progress; this package finds what ranks wait for, and which rank the others wait for.

Pure, in this order:

- `rank_states` finds which of all ranks stopped first, or that there is good reason to wait.
- `stall` has the leader's part (the question to all workers, their answers, the conclusion) and a worker's part: when
  it asks, when it judges by itself, when it reports.

Two parts use files and processes: `watch` carries out the decisions of `stall`. It reads `agent/progress` through
`observation`, and collects `evidence`.
"""

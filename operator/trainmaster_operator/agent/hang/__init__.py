"""A hung rank lives but makes no progress; this room finds what ranks wait for, and for which of them the others wait.

Pure, in this order:

- `rank_states` finds which of all ranks stopped first, or that there is good reason to wait.
- `stall` has the leader's part (the question to all workers, their answers, the conclusion) and a worker's part: when
  it asks, when it judges by itself, when it reports.

What touches files and processes: `watch` carries out what `stall` decides. It reads `agent/progress` through
`observation`, and collects `evidence`.
"""

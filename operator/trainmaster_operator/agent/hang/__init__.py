"""Ranks hang that live but make no progress; found are what they wait for, and for which of them the others wait.

Pure, in this order:

- `rank_states` says which of all ranks stopped first, or that there is good reason to wait.
- `diagnosis` is the leader's part in a stall: the question to all workers, their answers, the conclusion.
- `stall` is a worker's part: when it asks, when it judges by itself, when it reports.

What touches files and processes: `watch` carries out what `stall` decides. It reads `heartbeats`, and what
`agent/progress` knows, through `observation`, and collects `evidence`: `stacks`, the flight `recorder`, the
`kernel_view`.
"""

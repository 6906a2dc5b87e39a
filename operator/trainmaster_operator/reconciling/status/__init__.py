"""Computes the status after a pass, which people and programs read.

`next_status` builds it from a policy's transition and adds counts, conditions, `progress` (with the duration of the
newest recovery), `doubts` (ranks that never met, or finished early) and `time_spent` (the use of the job's time).
`events` are derived from the change of the status.
"""

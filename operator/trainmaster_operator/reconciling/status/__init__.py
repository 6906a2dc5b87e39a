"""The status after a pass is made here, as people and programs read it.

`next_status` puts it together from a policy's transition: counts, `conditions`, `progress` and `time_spent` (where the
job's time went), and how long the `recovery` from the newest failure took. `stacks` records whose
request for stacks was passed on. `events` are published once for a change of
the status.
"""

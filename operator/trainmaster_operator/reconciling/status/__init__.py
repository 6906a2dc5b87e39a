"""The status after a pass, as people and programs read it.

`next_status` builds it from a policy's transition: counts, conditions, `progress` (with the duration of the newest
recovery), `time_spent` (where the job's time went) and `stacks` (requests for stack traces). `events` follow from the
change of the status.
"""

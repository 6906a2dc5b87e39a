"""The status after a pass is for people and programs.

`next_status` builds it from a policy's transition: counts, conditions, `progress` (with the duration of the newest
recovery), `time_spent` (the use of the job's time) and `stacks` (requests for stack traces). `events` follow from the
change of the status.
"""

"""The webhook says at one address of the operator's own what becomes of jobs: phases and failures, as CloudEvents.

`cloud_events` makes the events of a status that was written; pure. `delivery` sends them, and nothing waits for it.
"""

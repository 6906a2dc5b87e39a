"""The operator sends records of jobs to a history (`trainmaster history`) in the background, and never waits for it.

`recorder` decides which records are made, and when. `outbox` converts each record to a line of JSON, and limits the
bytes of the waiting lines. `sender` posts the lines in batches until the history has stored them. The records are
defined in `trainmaster_operator.api.records`.
"""

"""The operator sends records of jobs to a history (`trainmaster history`) in the background, and never waits for it.

`recorder` decides what is recorded and when; `outbox` makes each record a line of JSON, and limits the bytes of the
waiting lines; `sender` posts them in batches until the history has them. The records are defined in
`trainmaster_operator.api.records`.
"""

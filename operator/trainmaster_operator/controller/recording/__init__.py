"""The operator sends records of jobs to a history (`trainmaster history`), in the background: it never waits for it.

`recorder` says what is recorded and when; `lines` makes a record a bounded line of JSON; `outbox` holds the lines that
wait, within so many bytes; `sender` posts them (`posting`), in batches, again and again until the history has them;
`writer_token` reads the token that goes with them. The records themselves are in `trainmaster_operator.api.records`.
"""

"""Policies are functions. Each takes a situation and returns a `Transition`, or None if it changes nothing.

`decide` calls the policies in the order of its table. Start with `attempts`, which opens attempts, ends them and opens
the next ones. It uses `attribution` (the cause of an end), `failure_rules` (restart, ignore or fail), `backoff` (the
wait before a restart, and pods that the kubelet would keep waiting), `opening` (workers and ranks of the next attempt),
`continuing` (ranks that keep training), `joining` (ranks that return), `quarantine` (failures by node) and `repeated`
(identical failures).

The other policies are independent: `startup` (problems that prevent pods from starting), `scheduling_backoff` (giving
up nodes for a while), `elastic` (shrink and grow), `missing_workers` (spares that replace them), `requests` (new code,
a user's restart), `queueing` (Kueue) and `lifecycle` (success, deadlines, suspension).
"""

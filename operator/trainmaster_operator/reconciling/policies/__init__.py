"""Policies are functions from a situation to a `Transition`, or None if they change nothing.

`decide` asks them in the order of its table. Start with `attempts`: how an attempt opens, fails and is followed by the
next. It uses `attribution` (the worker that ended it), `failure_rules` (restart, ignore or fail), `backoff` (how long a
restart waits, and pods that the kubelet would keep waiting), `opening` (workers and ranks of the next attempt),
`continuing` (ranks that keep training), `joining` (ranks that return) and `quarantine` (failures by node).

Independent of these: `startup` (obstacles to the start of pods), `scheduling_backoff` (giving up nodes for a while),
`elastic` (shrink and grow), `spares` (taking the place of a missing worker), `requests` (new code, a user's restart),
`queueing` (Kueue) and `lifecycle` (success, deadlines, suspension).
"""

"""The policies are functions from a situation to a `Transition`, or None where they have nothing to change.

`decide` asks them in the order of its table. Start with `attempts`: how an attempt opens, fails and is followed by the
next one. It uses `attribution` (who ended it), `failure_rules` (what that costs), `opening` (what the next one has),
`continuing` (who trains on meanwhile, and with `joining` who comes back), `quarantine` (failures by node),
`crash_loop_backoff` with `replacement` (pods that the kubelet would keep waiting) and `topology` (the order of the
ranks). The others stand alone: `startup`, `scheduling_backoff`, `elastic` (shrink and grow), `stand_in` (spares in the
places of workers that don't come), `suspension`, `requests` (new code, and restarts that a user asks for), `queueing`
(Kueue), `deadlines` (the active deadline, and the finished job's time to live), `success`.
"""

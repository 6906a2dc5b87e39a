"""The agent's connections: its port, the leader's table of all workers, and a follower's way to its leader.

The pure parts, which answer with `actions`: `leader` (with `workers`, its table, and `kept_lines`, for an operator that
begins to watch) and `follower`. `network` puts them together: it handles `events` and carries out the actions.

The connections: `server` is the port, `http` its protocol, `unauthenticated` who may wait at it without the token;
`joining` is one try to join a leader, `resolve` finds its address; `connection` is below all, `lines` what it carries.
`metrics` is what Prometheus reads.
"""

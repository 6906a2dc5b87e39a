"""The agent's connections: its port, a leader's connections to its followers, and a follower's to its leader.

Some modules are pure state machines: they take an event and the time, and act through an interface (`connections`).
In this order:

- `leader`: the table of `workers` with each one's last lines for operators, and the messages to followers.
- `follower`: when to try which host, which leader to follow, and when to leave it.
- `metrics`: the page for Prometheus.

Others use sockets:

- `network` owns all connections, and lets the leader and the follower decide about them.
- `server` is the agents' port; `joining` is one try to join a leader.
"""

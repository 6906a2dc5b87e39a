"""This package contains the agent's port, and the connections between a leader and its followers.

These modules are pure. The leader and the follower take an event and the time, and act through an interface
(`connections`):

- `leader` keeps the table of `workers`, with the last lines of each worker for operators, and sends messages to
  followers.
- `follower` decides when to try which host, which leader to follow, and when to leave the leader.
- `metrics` renders the page for Prometheus.

The other modules use sockets:

- `network` owns all connections, and lets the leader and the follower decide about them.
- `server` listens on the agents' port; `joining` is one try to join a leader.
"""

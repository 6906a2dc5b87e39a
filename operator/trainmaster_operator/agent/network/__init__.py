"""The agent's connections are its port, those to the leader's followers, and a follower's to its leader.

Some modules are pure state machines: they take an event and the time, and return actions (`messages`). In this order:

- `leader`: the table of `workers`, each one's last lines for operators, and the messages to its followers.
- `follower`: which host is tried when, whose follower this worker is, and when it leaves its leader.
- `metrics`: the page for Prometheus.

Others use sockets, and put events (`messages`) into the executor's queue:

- `network` has all connections, and lets the leader and the follower decide about them.
- `server` is the agents' port; `joining` is one try to join a leader.
"""

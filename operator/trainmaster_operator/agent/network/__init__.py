"""The agent's connections are its port, those to the leader's followers, and a follower's to its leader.

Pure, each a state machine that takes what has happened and the time, and returns actions (`messages`); in this order:

- `leader`: the table of `workers`, the last lines that operators get of each, and what it sends to its followers.
- `follower`: which host is tried when, whose follower this worker is, and when it leaves its leader.
- `metrics`: what Prometheus reads.

What touches sockets, and puts events (`messages`) into the executor's queue:

- `network` has all connections, and lets the leader and the follower decide about them.
- `server` is the agents' port; `joining` is one try to join a leader.
"""

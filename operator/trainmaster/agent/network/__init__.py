"""The agent's connections: its port, the leader's table of all workers, and a follower's way to its leader."""

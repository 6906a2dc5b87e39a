"""This package lets ranks train on in their own processes when others are lost, and takes new ones in.

A job's world is constant: a rank keeps its number, and the number of ranks, as long as its process lives. Those that
are present form a real group, and another one when the agent assigns the next attempt. Read it in this order.

1. `orders`: the agent assigns attempts through a file, and wakes the rank.
2. `membership`: what a rank knows, and which group it forms next; pure.
3. `real`: gloo's and NCCL's groups of the ranks that are present, which can be ended from any thread.
4. `group`: the process group that torch sees: it passes collectives on, and swallows their failures.
5. `store`: where the present ranks meet, which the lowest of them serves.
6. `forming`: they compare their steps, and who lacks the state is given it.
7. `start`: `init_process_group` makes such a group, where the agent can assign attempts.

It imports torch, the standard library, and how `recovery` encodes a state. What torchft showed: errors are swallowed in
the process group, so that a backward pass ends, and groups are made anew in the same process. Not taken: its manager
and lighthouse (the operator decides), a vote in each step (ranks compare steps after a fault), and a world size that
changes (a rank here stands in for others, so that the global batch stays).
"""

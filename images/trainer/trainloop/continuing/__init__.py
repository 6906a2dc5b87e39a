"""This package lets ranks train on in their own processes when others are lost, and lets new ones join.

A job's world is constant: a rank keeps its number, and the number of ranks, as long as its process lives. The present
ranks form a real group, and another one when the agent assigns the next attempt. Read it in this order.

1. `orders`: the agent assigns attempts through a file, and wakes the rank.
2. `membership`: a rank's knowledge, and the group that it forms next; pure.
3. `real`: gloo's and NCCL's groups of the present ranks, which any thread can end.
4. `group`: the process group that torch sees: it passes collectives on, and swallows their failures.
5. `store`: the present ranks meet in it; the lowest of them serves it.
6. `forming`: ranks compare their steps, and send the state to those that lack it.
7. `start`: `init_process_group` makes such a group if the agent can assign attempts.

It imports torch, the standard library, and `recovery`'s encoding of a state. As in torchft the process group swallows
errors, so that a backward pass ends, and groups are formed again in the same process. Unlike torchft it has no manager
and lighthouse (the operator decides), no vote in each step (ranks compare steps after a fault), and no world size that
changes (a rank takes over others' samples, so that the global batch stays).
"""

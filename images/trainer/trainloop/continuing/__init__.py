"""This package lets ranks continue training in their processes when others are lost, and lets new ranks join.

A job's world is constant: while a process lives, its rank and the number of ranks don't change. The present ranks form
a real group, and form a new one when the agent assigns the next attempt. Read the package in this order.

1. `orders`: the agent assigns attempts through a file, and wakes the rank.
2. `membership`: pure logic that decides from a rank's knowledge which group it forms next.
3. `real`: gloo's and NCCL's groups of the present ranks, which any thread can end.
4. `group`: the process group that torch sees, which passes collectives on and swallows their failures.
5. `store`: the store in which the present ranks meet, served by the lowest of them.
6. `forming`: ranks compare their steps, and send the state to those that lack it.
7. `start`: `init_process_group` makes such a group if the agent can assign attempts.

The package imports torch, the standard library, and `recovery`'s encoding of a state. As in torchft, the process group
swallows errors so that a backward pass ends, and groups are formed again in the same process. Unlike torchft, there is
no manager or lighthouse, because the operator decides. There is no vote in each step, because ranks compare steps after
a fault. The world size doesn't change, because present ranks process the lost ranks' samples to keep the global batch.
"""

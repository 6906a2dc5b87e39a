"""This package lets ranks continue training in their processes when other ranks are lost, and lets new ranks join.

A job's world is constant: while a process lives, its rank and the number of ranks don't change. The present ranks form
a real group, and form a new one when the agent assigns the next attempt. Read the package in this order.

1. `orders`: the agent assigns attempts through a file, and wakes the rank.
2. `membership`: pure logic that decides, from what a rank knows about attempts, which group the rank forms next.
3. `real`: gloo's and NCCL's groups of the present ranks, which any thread can end.
4. `group`: the process group that torch sees, which passes collectives on to the real group and swallows failures.
5. `store`: the store in which the present ranks meet, and which the lowest living rank serves.
6. `forming`: ranks form the next group, compare their steps, and send the state to the ranks that lack it.
7. `start`: if the agent can assign attempts, `init_process_group` makes a group that can continue.

The package imports torch, the standard library, and `recovery`'s encoding of a state. As in torchft, the process group
swallows errors so that a backward pass ends, and groups are formed again in the same process. There are three
differences from torchft. There is no manager or lighthouse, because the operator decides. There is no vote in each
step, because ranks compare steps after a fault. The world size doesn't change, because present ranks process the lost
ranks' samples to keep the global batch.
"""

"""This package makes ranks a group; read it in this order.

1. `world`: a rank's place, its device and backend, the few collectives, and joining and leaving the group.
2. `serialization`: the bytes that ranks send each other, without pickle.
3. `preflight`: ranks that run something else are found before the first collective.
4. `watchdog`: which rank hangs, where no agent judges it; `stalls`: what is published and printed then.
5. `machine`: the line that says what the ranks run on.
6. `diagnostics`: stacks and torch's flight recorder, for an agent that asks which rank hangs.
7. `continued`: the same world where ranks may be lost and others join, which an agent assigns; `idle`: what a rank does
   while its replica isn't complete.
"""

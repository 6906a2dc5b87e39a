"""This package makes ranks a group; read it in this order.

1. `world`: a rank's place, the few collectives, and joining and leaving the group; `device`: its device and backend.
2. `serialization`: the bytes that ranks send each other, without pickle.
3. `preflight`: ranks that run something else are found before the first collective.
4. `watchdog`: it names the rank that hangs, where no agent does.
5. `diagnostics`: what the agent reads: stacks, torch's flight recorder, and what the ranks run on.
"""

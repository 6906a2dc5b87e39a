"""This package lets a run continue in its own processes when ranks are lost; read it in this order.

1. `trainer`: the trainer that goes back to the last step that was made, forms the next group, and makes the step again.
2. `strategies`: what DDP, ZeRO-1 and FSDP2 each need for that, and why a run can't continue.
3. `world`: the world of which ranks may be absent, and what a rank does while it is idle.

It builds on `continuing`, which forms groups for any script.
"""

"""This package lets a run continue in its own processes when ranks are lost; read it in this order.

1. `trainer`: the trainer goes back to the last step that was made, forms the next group, and repeats the cut-off step.
2. `strategies`: the work of DDP, ZeRO-1 and FSDP2 for that, and the reasons why a run can't continue.
3. `world`: the world, whose ranks may be absent, and an idle rank's behaviour.

It builds on `continuing`, which forms groups for any script.
"""

"""This package lets a run continue in its own processes when ranks are lost; read it in this order.

1. `trainer`: the trainer goes back to the last step that was made, forms the next group, and repeats the cut-off step.
2. `strategies`: how DDP, ZeRO-1 and FSDP2 bring ranks to the same step, and the reasons why a run can't continue.
3. `world`: the world, in which ranks may be absent, and an idle rank's behaviour.

It builds on `continuing`, which forms groups for any script.
"""

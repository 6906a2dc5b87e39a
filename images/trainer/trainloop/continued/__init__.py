"""This package lets a run continue in its own processes when ranks are lost; read it in this order.

1. `trainer`: after a fault, the trainer returns to the last step that was made, forms the next group, and repeats the
   interrupted step.
2. `strategies`: how DDP, ZeRO-1 and FSDP2 bring ranks to the same step, and the reasons why a run can't continue.
3. `world`: a world in which ranks may be absent, and what an idle rank does.

This package builds on `continuing`, which forms groups for any script.
"""

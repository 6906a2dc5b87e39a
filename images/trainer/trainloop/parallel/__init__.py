"""This package spreads the model over the ranks; read it in this order.

1. `strategies`: one interface, and DDP; `sharded`: ZeRO-1 and FSDP2, and ranks that share each layer; `averaging`:
   local SGD and other parts that average by themselves; `model` makes the model, and chooses among them.
2. `blocks`: a model's repeated blocks, compiled or recomputed; `deferred` makes a model without memory for it.
3. `communication`: DDP's hook, which sends and measures; `compression`: gradients on fewer bits; `lossy`: compressors
   whose error is added to later steps.
4. `delayed`: a group of parameters that is stepped every k steps; `balance`: shares that follow the ranks' speed.
5. `gradients`: parameters without a gradient, or that differ between ranks; `copies`: ZeRO-1 with two ranks for
   each shard.
"""

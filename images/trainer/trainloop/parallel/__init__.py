"""This package distributes the model over the ranks; read it in this order.

1. `strategies`: the common interface, and DDP; `sharded`: ZeRO-1, FSDP2, and ranks that share each layer; `averaging`:
   local SGD and other parts that average without DDP; `model` creates the model, and chooses the strategy.
2. `blocks`: a model's repeated blocks, compiled or recomputed; `deferred` creates a model that uses no memory yet.
3. `communication`: DDP's hook, which sends and measures; `compression`: gradients with fewer bits; `lossy`: compressors
   whose error is added to later steps.
4. `delayed`: a group of parameters that is stepped every k steps; `balance`: shares that follow the ranks' speed.
5. `gradients`: detects parameters that have no gradient or that differ between ranks; `copies`: ZeRO-1 with two ranks
   for each shard.
"""

"""This package distributes the model over the ranks; read it in this order.

1. `strategies`: the common interface of all strategies, and DDP. `sharded`: ZeRO-1, FSDP2 and tensor parallelism.
   `averaging`: local SGD and other strategies that average without DDP. `model` creates the model, and chooses the
   strategy.
2. `blocks` compiles or recomputes a model's repeated blocks. `deferred` creates a model that uses no memory yet.
3. `communication`: DDP's hook, which sends gradients and measures that. `compression`: gradients with fewer bits.
   `lossy`: compressors whose error is added to later steps.
4. `delayed`: a group of parameters that is stepped only every k steps. `balance`: shares of the batch that follow the
   ranks' speed.
5. `gradients` detects parameters that have no gradient or that differ between ranks. `copies`: ZeRO-1 in which two
   ranks hold each shard.
"""

"""This package saves and loads checkpoints, from the files to the run; read it in this order.

1. `storage`: a checkpoint's files, its manifest, and tags; `retention`: which checkpoints stay; `saving`: how one is
   written, by a thread too.
2. `checkpointer`: which rank writes, and which checkpoint all ranks load; `spreading`: a rank that lacks it is given
   it.
3. `snapshots`: how a run's state is captured, and `resume`; `restoring`: from a checkpoint, also when steps stand out.
4. `shards`: every rank writes its own part, for models that no host can hold; `export`: the weights alone.
5. `memory`: the last finished step's state outlives its rank; `surviving` keeps it, by `trainloop.recovery`.
"""

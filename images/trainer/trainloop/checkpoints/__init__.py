"""This package saves and loads checkpoints, from the files to the run; read it in this order.

1. `storage`: a checkpoint's files, its manifest, and tags; `retention`: which checkpoints stay; `saving`: a checkpoint
   is written at once or by a thread.
2. `checkpointer`: which rank writes, and which checkpoint all ranks load; `spreading`: a rank that lacks it receives
   it.
3. `snapshots`: capturing a run's state, and `resume`; `restoring`: from a checkpoint, at a start or after odd steps.
4. `shards`: every rank writes its own part, for models that no host can hold; `export`: the weights alone.
5. `memory`: the last finished step's state outlives its rank; `surviving` keeps it, by `trainloop.recovery`.
"""

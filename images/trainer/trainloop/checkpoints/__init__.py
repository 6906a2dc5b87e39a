"""This package saves and loads checkpoints, from the files to the run; read it in this order.

1. `storage`: a checkpoint's files, its manifest, and tags; `retention`: which checkpoints are kept; `saving`: writing a
   checkpoint at once or in a thread.
2. `checkpointer`: which rank writes, and which checkpoint all ranks load; `spreading`: sending a checkpoint to ranks
   that lack it.
3. `snapshots`: capturing and resuming a run's state; `restoring`: loading a checkpoint at a start or after odd steps.
4. `shards`: every rank writes its own part, for models that no host can hold; `export`: the weights alone.
5. `memory`: the last finished step's state outlives its rank; `surviving` keeps that state with `trainloop.recovery`.
"""

"""This package saves and loads checkpoints; read it in this order, which leads from the files to the run.

1. `storage`: a checkpoint's files, its manifest, and tags. `retention` decides which checkpoints are kept. `saving`
   writes a checkpoint immediately or in a thread.
2. `checkpointer` decides which rank writes, and which checkpoint all ranks load. `spreading` sends a checkpoint to
   ranks that lack it.
3. `snapshots` captures and resumes a run's state. `restoring` loads a checkpoint when a run starts, or after several
   odd steps.
4. `shards`: every rank writes its own part, for models that no host can hold. `export` writes only the weights.
5. `memory`: the interface for keeping the last finished step's state in memory. `surviving` implements it with
   `trainloop.recovery`.
"""

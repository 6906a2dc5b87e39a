"""This package saves and loads checkpoints, from the files to the run; read it in this order.

1. `verification`: the manifest, its hashes, and the loss that a loaded model must compute again.
2. `storage`: a checkpoint is a directory that is renamed when it is complete.
3. `retention`: which checkpoints stay when a newer one has been written.
4. `checkpointer`: which rank writes, and which checkpoint all ranks load.
5. `snapshots`: what a run's state is, and `resume`, by which a run goes on; `restoring`: from a checkpoint.
6. `memory`: the last finished step's state outlives its rank; `surviving` is how, by `trainloop.recovery`, and
   `surviving_parts` where each rank has a part of it.

What only some runs need is imported when it is used: `saving` (a thread writes while training goes on), `sharded` and
`shards` (every rank writes its own part, for models that no host can hold), `spreading` (nodes have their own disks),
`room` (the disk is full), `rollback` (steps stand out), `tagging` (tags, and a start from one), `stateful` (what hooks
keep), `export` (the weights alone, at a run's end).
"""

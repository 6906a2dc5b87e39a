"""This is a complete training loop for distributed PyTorch. docs/training.md explains it; read it in this order.

1. `trainer` is the algorithm: `Trainer.run` and `train_step`; `__main__`, `run` and `config` lead to it.
2. `distributed`: the group of ranks, its collectives, and its checks (preflight, watchdog: which rank hangs).
3. `data` and `tasks`: the data order, which doesn't depend on the number of ranks, and what is trained.
4. `parallel` and `optimization`: the model's blocks, the model over the ranks, and what makes a step.
5. `checkpoints`: saving, a checkpoint's verification, and resume.
6. `evaluation`, `metrics`, `progress`: what a run measures and reports; beside them `outputs`, `report`, `plots`.
7. `settings`, `errors`, `resources`, `seeding`, `hooks`: what all of them need.

`recovery` keeps a run's state in memory for the next attempt; it is a library for any script, and needs no loop.

`continued` has a run's ranks go on in their processes when others are lost, where an agent can assign that. It builds
on `continuing`, which forms groups anew, and on `distributed/continued`.

Beside the loop stands what only some runs import: `streams`, `own_batches` and `rows` (other data, and measurements by
sample), `loader_processes` (which read ahead), `prepared` (data that is prepared once in a pod), `mistakes` and
`advice` (what is said of a wrong configuration, and of too little memory), `dry_run`, `mounted` (whether anyone changed
the configuration), and `versions`, the command `trainloop checkpoints`.
"""

"""This package is a complete training loop for distributed PyTorch. docs/training.md explains it; read in this order.

1. `trainer` contains the algorithm: `Trainer.run` and `train_step`. `__main__`, `config` and `run` lead to it.
2. `distributed`: the group of ranks, its collectives, and its checks.
3. `data`, `loader` and `tasks`: the data order, reading the data, and the training tasks. `streams`: data without an
   index. `prepared`: data that a pod prepares once.
4. `optimization` and `parallel`: how a step is computed, and how the model is distributed over the ranks.
   `objectives`: several losses, minimised one after the other.
5. `state` and `checkpoints`: a run's state, and how it is saved and restored.
6. `evaluation`, `metrics`, `progress`: a run's measurements and reports. `report` and `plots`: its curves.
7. `settings`, `errors`, `resources`, `seeding`: used by all of the above.

`recovery` keeps a run's state in memory for the next attempt; this library works for any script, even without the loop.
`continued` lets ranks continue in their processes when other ranks are lost. It builds on `continuing`, which forms
groups for any script. `versions` implements the command `trainloop checkpoints`.
"""

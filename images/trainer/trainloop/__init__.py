"""This is a complete training loop for distributed PyTorch. docs/training.md explains it; read it in this order.

1. `trainer` is the algorithm: `Trainer.run` and `train_step`; `__main__`, `run` and `config` lead to it.
2. `distributed`: the group of ranks, its collectives, and its checks.
3. `data`, `loader` and `tasks`: the order of the data, how it is read, and what is trained; `streams`: data without an
   index; `prepared`: data that is prepared once in a pod.
4. `optimization` and `parallel`: what makes a step, and the model over the ranks; `objectives`: several losses by
   turns.
5. `state` and `checkpoints`: what a run's state is, and how it is saved and restored.
6. `evaluation`, `metrics`, `progress`: what a run measures and reports; `report` and `plots`: its curves.
7. `settings`, `errors`, `resources`, `seeding`: what all of them need.

`recovery` keeps a run's state in memory for the next attempt; it is a library for any script, and needs no loop.
`continued` lets a run's ranks continue in their processes when others are lost; it builds on `continuing`, which forms
groups for any script. `versions` is the command `trainloop checkpoints`.
"""

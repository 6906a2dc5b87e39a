"""A test file is named for a module of trainloop, or for a behaviour, and then its first lines name the modules.

docs/training.md lists what is guaranteed. `toy` and `local_models` are small tasks and
models, `shapes` are models as people nest them, `ranks` starts real ranks, `reference` trains by hand in plain torch,
`damage` writes checkpoints and damages them, and `saved_runs` has those of real runs.
"""

"""A test file is named after a module of trainloop, or after a behaviour; then its first lines name the modules.

docs/training.md lists what is guaranteed. `toy` and `local_models` contain small tasks and models, `shapes` models
nested as people nest them. `ranks` starts real ranks, `reference` trains by hand in plain torch, `damage` writes
checkpoints and damages them, and `saved_runs` contains checkpoints of real runs.
"""

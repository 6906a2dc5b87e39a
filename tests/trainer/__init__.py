"""A test file is named for a module of trainloop, or for a behaviour, and then its first lines name the modules.

docs/training.md has the table of what is guaranteed, and by which test. `toy` and `local_models` are small tasks and
models, `ranks` starts real ranks, `reference` trains by hand in plain torch, and `damage` writes checkpoints and
damages them.
"""

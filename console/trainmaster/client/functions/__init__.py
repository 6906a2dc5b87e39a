"""Turns a function into a job: only its source and its arguments are sent.

1. `source` reads the function's text, checks that it can run alone, and makes the files that a job runs.
2. `training` has `train`, which submits them as a job's code, and the `JobHandle` that it returns.
"""

from trainmaster.client.functions.training import JobHandle, TrainOptions, train

__all__ = ["JobHandle", "TrainOptions", "train"]

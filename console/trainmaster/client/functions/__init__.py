"""A function becomes a job: its source and its arguments go along, and nothing else of the program that it stands in.

1. `source` takes the function's text and checks that it can run alone.
2. `bundle` makes the files of it that a job runs, with its arguments (`literals`).
3. `training` has `train`, which submits them as a job's code, and `handle` what it returns.
"""

from trainmaster.client.functions.handle import JobHandle
from trainmaster.client.functions.training import TrainOptions, train

__all__ = ["JobHandle", "TrainOptions", "train"]

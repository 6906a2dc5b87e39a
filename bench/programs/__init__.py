"""Contains programs that benchmarks' jobs run. They don't import the operator, which would delay each rank's start.

`stepping_ranks` and `gpu_ranks` record the time of each step, which `bench.clusters.steps` reads. `plain_ranks`,
`torchft_ranks` and `nvrx_ranks` do the same work (the micro-batches of `parts`) without Trainmaster. `forked` starts
them from a warm process. `gpu_state` keeps a state in memory without a cluster. `installed` installs the training loop
as in an image.
"""

"""Benchmarks' jobs run these programs. They import nothing of the operator: each rank would pay for that at its start.

`stepping_ranks` and `gpu_ranks` write down when they had done each step, which `bench.clusters.steps` reads.
`plain_ranks`, `torchft_ranks` and `nvrx_ranks` do the same work without Trainmaster; its micro-batches are in `parts`.
`forked` starts their ranks from a warm process.
`gpu_state` keeps a state in memory without a cluster. `installed` installs the training loop as in an image.
"""

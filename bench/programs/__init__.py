"""What benchmarks' jobs run. Nothing of the operator is imported here: each rank would pay for that at its start.

`stepping_ranks` write down when they had done each step, which `bench.clusters.steps` reads. `installed` installs the
training loop as an image has it.
"""

"""ConfigMaps keep the end of the workers' output (`logs`), failures' evidence (`evidence`), and requested `stacks`.

`config_maps` writes all three. `logs` also reads containers' output; `ending_pods` follows the pods that end, and
passes their output to `logs` and `evidence`.
"""

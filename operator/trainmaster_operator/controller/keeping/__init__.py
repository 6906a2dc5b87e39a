"""ConfigMaps keep the end of the workers' output (`logs`), the evidence of failures (`evidence`), and the `stacks` that
somebody asked for.

`config_maps` writes all three. `logs` also reads what containers print; `last_output` follows the pods that end, and
gives their output to `logs` and `evidence`.
"""

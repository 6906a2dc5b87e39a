"""ConfigMaps keep of a job's pods the end of the workers' output (`logs`), failures (`evidence`), and the `stacks` that
somebody asked for.

`owned_config_map` makes all three, owned by the job and left out of the operator's watch. `pod_logs` reads what
containers print; `last_output` follows those that end, and gives it to `logs` and `evidence`.
"""

"""ConfigMaps keep of a job's pods the end of the workers' output (`logs`), failures (`evidence`).

`owned_config_map` makes both, owned by the job and left out of the operator's watch.
"""

"""The API server of the local cluster.

`resources` says what a type is, `api` is the one path that every request takes (in process or over HTTP), `storage`
keeps objects and their history in memory, `http` speaks Kubernetes' REST protocol. What a type does beyond what all
types do (defaults, validation, columns, graceful deletion) it brings along as hooks: see `trainmaster_local.kinds`.
"""

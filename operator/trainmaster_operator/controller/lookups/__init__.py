"""A lookup reads by name what a decision needs beyond the job's own objects, when a job needs it.

Read `lookup` first: the one class, and what runs it. Each other module declares a `Lookup`:

| module | question |
|---|---|
| `killed_containers` | why the kubelet killed a worker's container (a probe) |
| `missing_pods` | why a StatefulSet's pods don't exist (a quota, a webhook) |
| `unseen_pods` | whether pods are there that the status names and no watch has shown |
| `node_domains` | in which rack or zone a node is |
| `kueue` | what a priority class and a resource flavor of Kueue mean |
"""

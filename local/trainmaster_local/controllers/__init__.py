"""Each of the controllers works like kube-controller-manager's.

Decisions are pure functions of a controller's inputs (`statefulset.plan`, `garbage.decide`). `loop.Controller` runs
them: informers report changed objects, and a queue with back-off calls `reconcile(key)` for each, never twice at once.

| to read | what it does |
|---|---|
| `loop` | queue, informers, back-off |
| `statefulset`, `revisions`, `statefulset_controller` | the plan for a set, its history, carrying it out |
| `workloads` | Deployments and ReplicaSets |
| `garbage`, `namespaces`, `retention` | deletion with an owner, with a namespace, after a time |
| `nodes`, `claims` | lost nodes; folders for PersistentVolumeClaims |
| `pods` | the controllers' questions about pods |
"""

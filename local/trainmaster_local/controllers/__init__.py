"""The controllers, each doing what kube-controller-manager's does.

Decisions are pure functions of what a controller sees (`statefulset.plan`, `garbage.decide`); `loop.Controller` runs
them: informers say which object changed, a queue with back-off calls `reconcile(key)` for each, never twice at once.

| to read | what it does |
|---|---|
| `loop` | queue, informers, back-off |
| `statefulset`, `revisions`, `statefulset_controller` | the plan for a set, its history, carrying it out |
| `workloads` | Deployments and ReplicaSets |
| `garbage`, `namespaces`, `retention` | what goes with its owner, with its namespace, with time |
| `nodes`, `claims` | lost nodes; folders for PersistentVolumeClaims |
| `pods` | what controllers ask about pods |
"""

"""The kubelet turns pods that are bound to a node into processes of this machine.

| to read | what it does |
|---|---|
| `host` | a pod worker's view of its node: one protocol |
| `node` | a node: registered, its lease renewed, a worker for each of its pods |
| `pod` | the worker: brings a pod up, keeps its containers running, ends it |
| `status` | a pod's status from its containers' states, in the kubelet's words |
| `devices` | the assignment of the node's devices to containers |
| `volumes`, `atomic` | volumes as folders; files that change all at once |
| `server` | `pods/log` and `pods/proxy` |
| `containers/` | one container, from its manifest to its process and its log |
"""

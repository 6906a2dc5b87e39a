"""The scheduler decides on which node a pod runs.

`scheduler` decides, without side effects: it applies kube-scheduler's filters with its messages, preemption, and a
score, to which `placement` adds affinity and spreading. `controller` watches pods and nodes, calls `scheduler`, and
binds the pods.
"""

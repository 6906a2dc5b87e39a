"""The scheduler decides on which node a pod runs.

`scheduler` decides, purely: kube-scheduler's filters in its words, preemption, and a score, to which `placement` adds
affinity and spreading. `controller` watches pods and nodes, calls it, and binds.
"""

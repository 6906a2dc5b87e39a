"""The executor and its helpers carry out decisions.

Read `executor` first: status, then actions, then events. `status` makes the smallest patch of a status, records
Kubernetes Events, and writes into Kueue's Workload; `children` creates and applies StatefulSets, Services and the like,
with preconditions; `agent_config_maps` makes and removes the ConfigMaps that pods mount their agent from.
"""

"""Decisions are carried out here.

Read `executor` first: status, then actions, then events. `status_patch` makes the smallest patch of a status;
`children` creates and applies StatefulSets, Services and the like, with preconditions; `agent_config_maps` makes and
removes the ConfigMaps that pods mount their agent from; `lost_nodes` reads a node before a pod is deleted by force;
`workload_status` writes into Kueue's Workload; `events` records Kubernetes Events.
"""

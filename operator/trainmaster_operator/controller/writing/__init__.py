"""The executor and its helpers carry out decisions.

Read `executor` first: it writes the status, then carries out actions, then records events. `status` computes the
smallest patch of a status, records Kubernetes Events, and writes to Kueue's Workload. `children` creates and applies
StatefulSets, Services and the like, with preconditions. `agent_config_maps` creates and removes the ConfigMaps from
which pods mount the agent.
"""

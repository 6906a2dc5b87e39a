"""apps/v1: `stateful_sets` and `deployments` (with ReplicaSets); `workload_templates` is what they have in common."""

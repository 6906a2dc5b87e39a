"""apps/v1: `deployments` (and ReplicaSets), `stateful_sets` (and ControllerRevisions), and the `templates` of both."""

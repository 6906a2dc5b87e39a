"""The operator's keys (`signing_keys`: read, made, rotated, pruned) and the Secrets of agents (`agents_secrets`)."""

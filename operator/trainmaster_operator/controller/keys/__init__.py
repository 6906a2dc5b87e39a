"""`signing_keys` reads and makes the operator's keys, `rotation` changes them, `agents_secrets` are those of agents."""

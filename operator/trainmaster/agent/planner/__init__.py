"""What the agent decides."""

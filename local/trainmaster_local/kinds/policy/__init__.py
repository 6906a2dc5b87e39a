"""Policies restrict other objects: `network_policies`, and `admission_policies` with their bindings."""

"""Policies restrain others: `network_policies`, and `admission_policies` with their bindings."""

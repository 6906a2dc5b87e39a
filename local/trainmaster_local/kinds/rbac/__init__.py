"""Permissions: `roles` (roles and their bindings), and `reviews` (access reviews and token requests)."""

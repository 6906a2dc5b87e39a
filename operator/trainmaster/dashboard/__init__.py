"""`trainmaster dashboard` is a page about jobs, with the rights of who looks at it."""

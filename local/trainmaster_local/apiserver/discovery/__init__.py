"""What the server publishes of itself: `documents` (discovery), `openapi`, and the `endpoints` that serve them."""

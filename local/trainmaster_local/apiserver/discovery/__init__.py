"""The server describes itself by `documents` (discovery) and `openapi`; `endpoints` serves both."""

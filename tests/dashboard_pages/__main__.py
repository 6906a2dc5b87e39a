"""`python -m tests.dashboard_pages [PORT]` serves the page with invented jobs until Ctrl-C."""

from __future__ import annotations

import sys

from aiohttp import web

from tests.dashboard_pages import troubled
from tests.dashboard_pages.server import FakeDashboard

port = int(sys.argv[1]) if len(sys.argv) > 1 else 8899
dashboard = FakeDashboard()
troubled.add(dashboard)
web.run_app(dashboard.app(), host="127.0.0.1", port=port)

"""`python -m trainmaster.agent` runs the agent."""

from __future__ import annotations

import sys

from trainmaster.agent.main import main

sys.exit(main())

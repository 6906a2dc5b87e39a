"""`python -m trainmaster_operator.agent` runs the agent."""

from __future__ import annotations

import sys

from trainmaster_operator.agent.main import main

sys.exit(main())

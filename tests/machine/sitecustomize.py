"""Python runs this at its start where this folder is on PYTHONPATH: in processes that tests start.

Under TEST_MACHINE they take themselves for the same machine as the session does.
"""

from __future__ import annotations

import machines

machines.describe_host()

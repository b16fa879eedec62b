"""Python runs this at its start where this folder is on PYTHONPATH: in processes that tests start.

Under TEST_MACHINE they take themselves for the same machine as the session does.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from support import machines

machines.describe_host()

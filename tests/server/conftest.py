"""The server's tests need the extra `leanconv[server]`, and httpx."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

NEEDED = ("starlette", "uvicorn", "prometheus_client", "httpx")
MISSING = [name for name in NEEDED if find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say why these tests do not run."""
    return [f"server: not tested, for want of {', '.join(MISSING)}"] if MISSING else []

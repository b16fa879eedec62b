"""Numerics of every kernel, in Triton's interpreter, through plans and a fake driver."""

from __future__ import annotations

import pytest
from gpu_workers import HAS_TRITON, REASON, rows, start

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason=REASON)
SECONDS = 400
LEAST = {"conv": 55, "node": 70, "network": 7}


@pytest.mark.parametrize("kind", ["conv", "node", "network"])
def test_every_case_is_right(kind: str) -> None:
    found = rows(start("interpret_worker.py", kind, TRITON_INTERPRET="1"), SECONDS)
    assert len(found) >= LEAST[kind], "cases are missing"
    wrong = [
        row for row in found if "failure" in row or not row["error"] <= max(row["allowed"], 0.0)
    ]
    assert wrong == []
    counted = [row for row in found if "used" in row]
    assert [row for row in counted if row["used"] != row["counted"]] == []
    # A bound that is loose by two orders says nothing.
    loose = [r for r in found if r.get("predicted", 0) > 100 * r.get("error", 1) > 0]
    assert [row for row in loose if row["arithmetic"] not in ("tf32", "tf32x3")] == []

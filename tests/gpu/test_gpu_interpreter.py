"""Numerics of every kernel, in Triton's interpreter, through plans and a fake driver."""

from __future__ import annotations

from typing import Any

import pytest

from support.gpu.workers import HAS_TRITON, REASON, rows, start

pytestmark = [
    pytest.mark.skipif(not HAS_TRITON, reason=REASON),
    pytest.mark.timeout(600),  # what all tests share is made in the first one
]
SECONDS = 400
LEAST = {"conv": 78, "node": 79, "small network": 7, "sample": 3}


@pytest.fixture(scope="module")
def found() -> dict[str, list[dict[str, Any]]]:
    """The rows of each kind; two processes at once."""
    workers = [
        start("interpret_worker", *kinds, TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
        for kinds in (("conv",), ("node", "small network", "sample"))
    ]
    made = [row for worker in workers for row in rows(worker, SECONDS)]
    return {kind: [row for row in made if row["kind"] == kind] for kind in LEAST}


@pytest.mark.parametrize("kind", list(LEAST))
def test_every_case_is_right(found: dict[str, list[dict[str, Any]]], kind: str) -> None:
    _check(kind, found[kind])


def _check(kind: str, found: list[dict[str, Any]]) -> None:
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

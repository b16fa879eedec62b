"""What tests of plans share."""

from __future__ import annotations

import pytest

from support.known_costs import evaluate_once


@pytest.fixture
def nodes_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluate the nodes of equal networks once for all plans of this test."""
    evaluate_once(monkeypatch)

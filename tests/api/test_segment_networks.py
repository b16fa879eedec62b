"""Networks that are compiled in a run, by threads that share them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from leanconv.api.network import Network
from leanconv.api.segment_networks import SegmentNetworks
from leanconv.errors import UnsupportedError
from leanconv.graph.limits import Limits, RunBudget
from leanconv.graph.onnx_import import Model
from leanconv.graph.segments import Segment
from leanconv.types import FLOAT32


class _Network:
    """A network that lets other threads run while it is asked for its size."""

    used_bytes = 1
    plan = SimpleNamespace(outputs={})

    @property
    def kept_bytes(self) -> int:
        time.sleep(1e-5)
        return 10

    def bind(self, _sizes: Any) -> None:
        """Nothing to plan."""

    def run(self, _inputs: Any) -> dict[str, np.ndarray]:
        return {}


def test_threads_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread keeps and drops networks while others add up what is kept."""
    made = SegmentNetworks(
        cast("Model", None), FLOAT32, lambda *_given: cast("Network", _Network()), 100
    )
    monkeypatch.setattr(made, "_part", lambda _segment: None)
    budget = cast("RunBudget", SimpleNamespace(room=None, expect=lambda _bytes: None))

    def runs(thread: int) -> None:
        for number in range(30):
            inputs: dict[str, np.ndarray] = {}
            segment = SimpleNamespace(
                nodes=(thread, number % 20), known=(), constants={}, inputs=inputs
            )
            made.run(cast("Segment", segment), budget)
            made.give_back(number % 3)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(runs, range(4)))
    assert made.bytes <= 32


def test_results_that_are_too_large_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    class Large(_Network):
        plan = SimpleNamespace(outputs={"y": SimpleNamespace(bytes=1 << 40)})

        def run(self, _inputs: Any) -> dict[str, np.ndarray]:
            ran.append(1)
            return {}

    made = SegmentNetworks(
        cast("Model", None), FLOAT32, lambda *_given: cast("Network", Large()), 100
    )
    monkeypatch.setattr(made, "_part", lambda _segment: None)
    segment = SimpleNamespace(nodes=(), known=(), constants={}, inputs={})
    with pytest.raises(UnsupportedError):
        made.run(cast("Segment", segment), RunBudget(Limits()))
    assert not ran

"""Networks that are compiled in a run, by threads that share them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import leanconv as lc
from leanconv.api.network import Network
from leanconv.api.segment_networks import SegmentNetworks
from leanconv.errors import UnsupportedError
from leanconv.graph.limits import Limits, RunBudget
from leanconv.graph.onnx_import import Model
from leanconv.graph.segments import Segment
from leanconv.types import FLOAT32
from support.control_flow import node
from support.network_models import by_onnxruntime
from support.onnx_models import model


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


def _rows(layers: int) -> bytes:
    """Convolutions, each of rows whose number follows from values."""
    random = np.random.default_rng(0)
    constants: dict[str, np.ndarray] = {"zero": np.float32(0), "first": np.array([0])}
    nodes, value = [], "x"
    for n in range(layers):
        constants[f"w{n}"] = random.standard_normal((64, 64, 3, 3)).astype("f4") / 8
        nodes += [
            node("Greater", f"flags{n} zero", f"kept{n}"),
            node("NonZero", f"kept{n}", f"found{n}"),
            node("Squeeze", f"found{n} first", f"places{n}"),
            node("Gather", f"{value} places{n}", f"rows{n}", axis=2),
            node("Conv", f"rows{n} w{n}", f"y{n}", pads=[1] * 4),
        ]
        value = f"y{n}"
    inputs = {"x": (1, 64, "h", 56), **{f"flags{n}": (f"k{n}",) for n in range(layers)}}
    return bytes(model(nodes, inputs, [value], constants).SerializeToString())


def _feed(rows: int, layers: int = 1) -> dict[str, np.ndarray]:
    x = np.random.default_rng(rows).standard_normal((1, 64, 56, 56)).astype("f4")
    return {"x": x, **{f"flags{n}": (np.arange(56) < rows).astype("f4") for n in range(layers)}}


def test_earlier_runs_within_a_limit_decide_on_no_plan() -> None:
    """What they have left is freed for the plan that is made where nothing was before."""
    built, feed = _rows(1), _feed(40)
    net = lc.load(built, threads=1)
    (wanted,) = by_onnxruntime(built, feed).values()
    net.run(feed)
    bytes_then = net.plan.memory_bytes
    for quarters in range(8, 12):
        limit = bytes_then * quarters // 4
        net, alone = (lc.load(built, threads=1, memory_limit=limit) for _ in range(2))
        net.run(_feed(30))
        (found,), (first,) = net.run(feed).values(), alone.run(feed).values()
        assert found.tobytes() == first.tobytes()
        assert max(net.used_bytes, net.plan.memory_bytes) <= limit
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_what_one_run_compiles_within_a_limit_is_planned_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second part is planned beside the first, not in its place."""
    built, feed = _rows(2), _feed(40, 2)
    net = lc.load(built, threads=1)
    net.run(feed)
    free, beside = net.plan.memory_bytes, 0
    made: list[int] = []
    planned = SegmentNetworks._planned

    def counted(self: SegmentNetworks, segment: Segment, most: int, room: int) -> Network:
        made.append(most)
        return planned(self, segment, most, room)

    monkeypatch.setattr(SegmentNetworks, "_planned", counted)
    for eighths in range(10, 20):
        net = lc.load(built, threads=1, memory_limit=free * eighths // 8)
        made.clear()
        try:
            first = net.run(feed)
        except UnsupportedError:
            continue
        if len(net.backend._segments._kept) < 2:
            continue  # the first part had to go
        beside += 1
        made.clear()
        assert [a.tobytes() for a in net.run(feed).values()] == [
            a.tobytes() for a in first.values()
        ]
        assert not made
    assert beside > 2

"""Whether values are stored in halves: by time, within limits of bytes and error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leanconv as lc
from leanconv.api import cpu_graphs
from leanconv.api.cpu_backend import CpuBackend
from leanconv.api.options import NetworkOptions
from leanconv.errors import BudgetError
from leanconv.graph.ir import Graph
from leanconv.graph.onnx_import import Model, read_model
from leanconv.target import preset
from leanconv.types import BFLOAT16, FLOAT16, HALVES, DType
from support.control_flow import node
from support.half_models import in_half
from support.onnx_models import model, small_cnn

R = np.random.default_rng(0)
SIZE = (1, 128, 14, 14)


def layers() -> bytes:
    """Three layers of 1x1 with 128 channels, plain at both ends."""
    weights = {f"w{n}": R.standard_normal((128, 128, 1, 1)).astype("f4") / 11 for n in range(3)}
    nodes = [
        node("Conv", f"{x} w{n}", y)
        for n, (x, y) in enumerate((("x", "a"), ("a", "b"), ("b", "y")))
    ]
    return bytes(model(nodes, {"x": SIZE}, ["y"], weights).SerializeToString())


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp("three") / "three.onnx"
    path.write_bytes(layers())
    return read_model(path)


def graph_for(
    given: Model, machine: str, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[Graph, set[DType]]:
    """The graph that is planned on a machine, and the halves in which it stores values."""
    monkeypatch.setattr(cpu_graphs, "planning_target", lambda: preset(machine))
    backend = CpuBackend(given, NetworkOptions(threads=1, **options))
    graph = backend.graph((SIZE,))
    return graph, {kind.dtype for kind in graph.types.values()} & set(HALVES)


@pytest.mark.parametrize(
    ("machine", "half", "stored"),
    [
        ("sapphirerapids", BFLOAT16, {BFLOAT16}),  # matrix tiles
        ("znver4", BFLOAT16, {BFLOAT16}),  # dot products
        ("haswell", BFLOAT16, set()),  # neither
        ("znver4", FLOAT16, set()),
    ],
)
@pytest.mark.presets
def test_values_are_stored_in_halves_where_that_is_faster(
    machine: str,
    half: DType,
    stored: set[DType],
    three: Model,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert graph_for(three, machine, monkeypatch, precision=half)[1] == stored


@pytest.mark.presets
def test_a_limit_of_bytes_asks_for_halves(three: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 3 * 128 * 128 * 2 + 3 * 128 * 14 * 14 * 2
    _, stored = graph_for(three, "haswell", monkeypatch, precision=FLOAT16, memory_limit=limit)
    assert stored == {FLOAT16}


@pytest.mark.presets
def test_an_error_allows_halves(three: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    assert graph_for(three, "znver4", monkeypatch, max_error=0.5)[1] == {BFLOAT16}
    assert not graph_for(three, "haswell", monkeypatch, max_error=0.5)[1]
    assert not graph_for(three, "znver4", monkeypatch, max_error=1e-3)[1]
    monkeypatch.undo()


def test_all_choices_compute_the_same() -> None:
    proto = small_cnn()
    exact = lc.load(proto, dtype="float64", threads=1)
    nets = [
        lc.load(in_half(proto), threads=1),
        lc.load(in_half(proto), threads=1, reproducible=True),  # float16 all through
        lc.load(proto, threads=1, max_error=0.5),
    ]
    for shape in ((1, 3, 32, 32), (3, 3, 19, 40)):
        x = R.standard_normal(shape).astype("f2")
        expected = exact(x.astype("f8"))
        for net in nets:
            y = net(x.astype(net.inputs[0].dtype)).astype("f8")
            stated = net.plan.predicted_error
            assert np.abs(y - expected).max() <= stated * np.abs(expected).max() + 1e-3
    with pytest.raises(BudgetError, match="max_error"):
        lc.load(proto, precision="float16", max_error=1e-5)(x.astype("f4"))


def test_errors_that_are_magnified_are_stated() -> None:
    """A normalisation of rows that hardly vary, and a root of numbers near 0."""
    weights = {"w": R.standard_normal((8, 8, 1, 1)).astype("f4") / 3, "far": np.float32([20.0])}
    weights |= {"one": np.ones(12, "f4"), "zero": np.zeros(12, "f4")}
    nodes = [
        node("Conv", "x w", "c"),
        node("Add", "c far", "shifted"),
        node("LayerNormalization", "shifted one zero", "n", axis=-1),
        node("Abs", "c", "a"),
        node("Sqrt", "a", "r"),
    ]
    proto = model(nodes, {"x": (2, 8, 24, 12)}, ["n", "r"], weights)
    x = R.standard_normal((2, 8, 24, 12)).astype("f4")
    exact = lc.load(proto, dtype="float64", threads=1).run({"x": x.astype("f8")})
    for half in HALVES:
        net = lc.load(proto, precision=str(half), threads=1, reproducible=True)
        for name, y in net.run({"x": x}).items():
            apart = np.abs(y - exact[name]).max() / np.abs(exact[name]).max()
            assert apart <= 2 * net.plan.predicted_error

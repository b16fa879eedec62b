"""Nodes of very many inputs: work, compiled code and words grow as the inputs do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.codegen.host import host
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import run_passes
from leanconv.kernels import layout
from leanconv.kernels.copy import Copy
from leanconv.operators import Accuracy
from leanconv.planner.lowered_graph import LoweredGraph
from leanconv.planner.lowering import lower_graph, usual_choices
from leanconv.types import FLOAT32
from support.counted import lines_of
from support.onnx_models import model


def concat(count: int, apart: bool, axis: int = 1) -> bytes:
    """One input, or what is computed of it, many times side by side."""
    names = [f"s{number}" for number in range(count)] if apart else ["x"] * count
    nodes = [helper.make_node("HardSigmoid", ["x"], [n], alpha=0.1) for n in names if apart]
    for number, node in enumerate(nodes):
        node.attribute[0].f = 0.1 + 0.001 * number
    nodes.append(helper.make_node("Concat", names, ["y"], axis=axis))
    proto = model(nodes, {"x": (1, 2, 3, 5)}, ["y"], {})
    found: bytes = proto.SerializeToString()
    return found


def lowered(file: bytes) -> LoweredGraph:
    graph = run_passes(read_model(file).bind({"x": (1, 2, 3, 5)}, dtype=FLOAT32))
    accuracy = Accuracy(1e-5)
    return lower_graph(graph, host(), accuracy, usual_choices(graph, host(), accuracy))


def test_no_kernel_copies_from_very_many_places() -> None:
    """LLVM takes more than linear time for one function, and a form has a bounded table."""
    kernels = [call.kernel for step in lowered(concat(1000, False)).steps for call in step.calls]
    copies = [kernel for kernel in kernels if isinstance(kernel, Copy)]
    assert sum(len(kernel.tasks) for kernel in copies) == 1000
    assert max(len(kernel.tasks) for kernel in copies) <= 64
    assert max(kernel.sources for kernel in copies) <= 64


@pytest.mark.parametrize("axis", [1, 3])
def test_what_is_put_side_by_side_is_all_there(monkeypatch: pytest.MonkeyPatch, axis: int) -> None:
    monkeypatch.setattr(layout, "_MOST_TASKS", 4)
    x = np.random.default_rng(0).standard_normal((1, 2, 3, 5), np.float32)
    for count in (4, 5, 11):
        found = lc.load(concat(count, False, axis), threads=1)(x)
        np.testing.assert_array_equal(found, np.concatenate([x] * count, axis))


@pytest.mark.parametrize(
    "file", [lambda count: concat(count, False), lambda count: concat(count, True)]
)
def test_work_grows_as_the_inputs(file: Callable[[int], bytes]) -> None:
    few, many = (lines_of(lambda count=count: lowered(file(count))) for count in (100, 400))
    assert many < 5 * few

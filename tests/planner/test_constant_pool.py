"""Weights are let go as they are packed, and nobody's graph or dictionary is changed for it."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.codegen.lowered import Packing
from leanconv.graph.ir import Graph
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import run_passes
from leanconv.kernels.packing import copied
from leanconv.operators import Accuracy, operator_of
from leanconv.planner.budget import Planner
from leanconv.planner.compiled_network import CompiledNetwork
from leanconv.planner.lowered_graph import ConstantPool, OwnedGraph
from support.format_cases import cases
from support.network_models import model

pytestmark = pytest.mark.once  # any plan will do


def folded() -> Graph:
    """A network whose weights are arrays of its own: batch normalisation is folded into them."""
    return run_passes(read_model(model("resnet50")).bind({"input": (1, 3, 64, 64)}))


def bound(owned: OwnedGraph) -> CompiledNetwork:
    return CompiledNetwork(owned, Planner(owned.graph, host(), 1, Accuracy()))


def test_nothing_holds_the_weights_of_a_graph_once_it_is_planned() -> None:
    owned = OwnedGraph(folded())
    arrays = [weakref.ref(array) for array in owned.graph.constants.values()]
    assert len(arrays) > 100
    network = bound(owned)
    assert network.plan.weight_bytes > 100_000
    assert not [array for array in arrays if array() is not None]
    with pytest.raises(AssertionError, match="taken already"):
        owned.take()


def test_a_graph_that_its_caller_keeps_stays_whole() -> None:
    graph = folded()
    before = {name: array.copy() for name, array in graph.constants.items()}
    bound(OwnedGraph(graph))
    assert graph.constants.keys() == before.keys()
    assert all(np.array_equal(graph.constants[name], array) for name, array in before.items())


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "QLinearConv", "DataConv", "ConvChain"])
def test_what_packs_constants_holds_no_graph(op: str) -> None:
    """Where each layer's packing held the whole, nothing was let go before the last layer."""
    case = cases(op)[0]
    context = next(case.contexts(host()))
    lowered, graph = operator_of(case.node).lower(context), weakref.ref(context.graph)
    del case, context
    gc.collect()
    assert graph() is None
    assert all(packing.calls() for packing in lowered.packings)


def test_a_pool_gives_up_one_constant_after_the_other() -> None:
    table, packed = np.ones(3, np.float32), np.zeros(5, np.float32)
    constants = {"a": table, "b": table, "c": np.ones(20, np.float32)}
    pool = ConstantPool(constants, (Packing({"p": 20}, lambda: {"p": copied(packed)}),))
    assert pool.bytes == {"a": 12, "b": 12, "c": 80, "p": 20}
    places, end = pool.places()
    assert places["a"] == places["b"] == 0
    assert places["a"] < places["c"] < places["p"] < end
    assert [name for name, _ in pool.take()] == ["a", "b", "c", "p"]
    assert not list(pool.take())
    assert pool.bytes["p"] == 20
    assert constants.keys() == {"a", "b", "c"}

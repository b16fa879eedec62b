"""Plans of one network for several shapes read the same packed weights."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.algorithms import select
from leanconv.algorithms.parameters import AUTO
from leanconv.codegen.host import host
from leanconv.codegen.lowered import Packing
from leanconv.graph.ir import Graph, number_of
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import run_passes
from leanconv.operators import Accuracy, operator_of
from leanconv.operators.operator import NodeContext
from leanconv.planner.formats import default_decisions, format_rules
from leanconv.planner.lowered_graph import ConstantPool, WeightStore
from leanconv.planner.weights import packing_digest
from leanconv.runtime.memory import Block
from support.onnx_models import model, small_cnn
from support.packing import packed_by

pytestmark = pytest.mark.once  # any plan will do

Array = np.ndarray


def filled(store: WeightStore, *packings: Packing) -> ConstantPool:
    """A pool of packings, what is left to pack of it put into a block that the store is offered."""
    pool = ConstantPool({}, packings)
    pool.kept = pool.take_shared(store)  # type: ignore[attr-defined]
    places, end = pool.places()
    block = Block(end)
    pool.kept += store.keep(pool.offered(), block, places)  # type: ignore[attr-defined]
    return pool


def packing(recipe: object, *sources: Array, name: str = "w") -> Packing:
    return Packing({name: 64}, dict, recipe=recipe, sources=sources)  # type: ignore[arg-type]


def test_equal_recipes_of_the_same_arrays_are_shared() -> None:
    store, w, other = WeightStore(), np.ones(4), np.ones(4)
    first = filled(store, packing("a", w))
    assert first.packings
    assert not filled(store, packing("a", w)).packings
    for different in (packing("b", w), packing("a", other), packing(None, w)):
        assert filled(store, different).packings
    assert filled(store, packing("a", w, name="v")).packings


def test_unknown_recipes_are_never_shared() -> None:
    store, w = WeightStore(), np.ones(4)
    pools = [filled(store, packing(None, w)) for _ in range(2)]
    assert all(pool.packings for pool in pools)


def test_shared_weights_go_with_the_last_plan() -> None:
    store, w = WeightStore(), np.ones(4)
    first = filled(store, packing("a", w))
    second = filled(store, packing("a", w))
    del first
    gc.collect()
    assert store.find(packing("a", w)) is not None
    del second
    gc.collect()
    assert store.find(packing("a", w)) is None


def test_weights_of_snapshots_are_found_by_their_digests() -> None:
    block, w = Block(128), np.ones(4)
    places = {packing_digest(packing("a", w)): (block, [block.address + 64])}
    asked: list[list[int]] = []

    def elsewhere(digest: str, sizes: Sequence[int]) -> tuple[Block, list[int]] | None:
        asked.append([*sizes])
        return places.get(digest)

    store = WeightStore(packing_digest, elsewhere)
    for same in (w, np.ones(4)):  # whichever process made the array
        found = store.find(packing("a", same, name="v"))
        assert found is not None
        assert found.addresses == {"v": block.address + 64}
        assert (found.block, found.bytes) == (block, 64)
        assert found.digest in places
    for other in (packing("b", w), packing("a", w * 2), packing("a", w.astype("f4"))):
        assert store.find(other) is None
    assert asked == [[64]] * 5
    assert store.find(packing(None, w)) is None
    assert len(asked) == 5


def test_an_array_at_a_freed_ones_address_is_another() -> None:
    store, numbers, places = WeightStore(), [], []
    for _ in range(3):
        w = np.ones(4)  # where the one before it was
        assert store.find(packing("a", w)) is None
        pool = filled(store, packing("a", w))
        assert store.find(packing("a", w)) is not None
        assert number_of(w) == number_of(w)
        numbers.append(number_of(w))
        places.append(pool)
        del w
    assert len(set(numbers)) == 3


# -- recipes -------------------------------------------------------------------------------
def convolutions(size: tuple[int, int]) -> Graph:
    """Convolutions of many kinds, on a map of an open size."""
    generator = np.random.default_rng(0)
    held: dict[str, Array] = {}
    nodes, name, channels = [], "x", 24
    for number, (outputs, kernel, group, stride) in enumerate(
        [
            (32, 3, 1, 1),
            (32, 3, 32, 1),
            (48, 1, 1, 1),
            (48, 5, 48, 2),
            (24, 1, 1, 1),
            (32, 3, 4, 1),
            (40, 7, 1, 1),
            (33, 1, 1, 2),
        ]
    ):
        shape = (outputs, channels // group, kernel, kernel)
        held[f"w{number}"] = generator.standard_normal(shape).astype("f4")
        held[f"b{number}"] = generator.standard_normal(outputs).astype("f4")
        pads = [kernel // 2] * 4
        nodes.append(
            helper.make_node(
                "Conv",
                [name, f"w{number}", f"b{number}"],
                [f"y{number}"],
                group=group,
                strides=[stride, stride],
                pads=pads,
            )
        )
        name, channels = f"y{number}", outputs
    proto = model(nodes, {"x": (1, 24, "H", "W")}, [name], held)
    read = read_model(proto.SerializeToString())
    return run_passes(read.bind({"x": (1, 24, *size)}))


def recipes(graph: Graph, algorithm: str) -> dict[object, dict[str, bytes]]:
    """What each recipe makes of the weights of the graph's nodes, by an algorithm where it can."""
    found: dict[object, dict[str, bytes]] = {}
    rules = format_rules(graph, host())
    decisions = default_decisions(rules)
    for node, decision in zip(graph.nodes, decisions, strict=True):
        context: NodeContext = decision.context(node, graph, host(), Accuracy())
        choice = AUTO
        if algorithm:
            if node.op != "Conv" or algorithm in operator_of(node).rejections(context):
                continue
            choice = select.choice_named(algorithm)
        for each in operator_of(node).lower(context, choice).packings:
            if each.recipe is not None:
                made = {name: array.tobytes() for name, array in packed_by(each).items()}
                found[(node.name, each.recipe)] = made
    return found


@pytest.mark.parametrize("algorithm", ["", "direct", "winograd", "fft", "im2col", "planar"])
def test_equal_recipes_make_equal_weights_whatever_the_size(algorithm: str) -> None:
    one, *others = (
        recipes(convolutions(size), algorithm) for size in ((20, 20), (33, 47), (8, 64), (56, 56))
    )
    shared = 0
    for other in others:
        for recipe in one.keys() & other.keys():
            shared += 1
            assert one[recipe] == other[recipe]
    assert shared or algorithm != "direct"


# -- networks ------------------------------------------------------------------------------
def test_a_second_width_reads_the_weights_of_the_first() -> None:
    built = small_cnn(batch=1).SerializeToString()
    net = lc.load(built)
    generator = np.random.default_rng(1)
    for width in (64, 96, 128):
        x = generator.standard_normal((1, 3, 64, width)).astype("f4")
        alone = lc.load(built)
        np.testing.assert_array_equal(net(x), alone(x))
        assert net.used_bytes == net.plan.memory_bytes == alone.used_bytes
    shared = net.compiled.network.shared_bytes  # type: ignore[attr-defined]
    assert shared > 0


def test_plans_of_other_shapes_outlive_the_first_one() -> None:
    """What is shared stays when the plan that packed it is gone."""
    built = small_cnn(batch=1).SerializeToString()
    net = lc.load(built)
    x = np.random.default_rng(1).standard_normal((1, 3, 64, 96)).astype("f4")
    net.bind((1, 3, 64, 64))
    expected = net(x)
    net._plans._plans.popitem(last=False)
    gc.collect()
    np.testing.assert_array_equal(net(x), expected)

"""Loops of many iterations: one node that holds the body, planned once."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import leanconv as lc
from leanconv.errors import LeanConvError
from leanconv.graph.convert import loop_bodies
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import run_passes
from support.control_flow import graph, node
from support.loops import (
    CONV,
    NESTED,
    STACKED,
    W,
    X,
    body,
    compiled,
    hold,
    loop,
    made,
    ops,
)
from support.onnx_models import agree, reference


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let loops of more than two iterations be held."""
    hold(monkeypatch)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("count", [3, 4, 7])
def test_what_is_carried_and_what_is_stacked(count: int) -> None:
    nodes = [node("Relu", "x", "outer"), loop("n true x", "y z u", STACKED)]
    proto = made(nodes, count, "y z u", X.shape)
    assert ops(proto) == ["Relu", "Loop"]
    agree(proto, {"x": X})
    compiled(proto)


@pytest.mark.parametrize("count", [1000, 100_000])
def test_many_iterations(count: int) -> None:
    inside = body(
        [
            node("Conv", "s w", "c", pads=[1] * 4),
            node("Add", "c x", "a"),
            node("Tanh", "a", "t"),
            node("ReduceMean", "t", "m", axes=[1, 2, 3], keepdims=0),
        ],
        "t m",
    )
    small = X[:1, :, :3, :3]
    proto = made([loop("n true x", "y z", inside)], count, "y z", small.shape)
    assert ops(proto, small.shape) == ["Loop"]
    plan = compiled(proto, small, 1e-4).plan
    assert plan.memory_bytes < 8192
    assert plan.flops == count * (2 * 3 * 3 * 9 * 9 + 3 * 9)


@pytest.mark.parametrize("count", [3, 4, 8])
def test_held_is_as_written_out(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit: each layer of an iteration is computed in the same way."""
    nodes = [node("Relu", "x", "outer"), loop("n true x", "y z u", STACKED)]
    proto = made(nodes, count, "y z u", X.shape)
    found = lc.load(proto.SerializeToString(), threads=1).run({"x": X})
    monkeypatch.setattr(loop_bodies, "FEW_WRITTEN_OUT", 0)
    assert ops(proto) == ["Relu", "Loop"]
    for name, array in lc.load(proto.SerializeToString(), threads=1).run({"x": X}).items():
        np.testing.assert_array_equal(array, found[name])


@pytest.mark.usefixtures("few")
def test_nothing_is_carried() -> None:
    inside = body([node("Relu", "x", "a")], "a", "i on")
    proto = made([loop("n true", "y", inside)], 5, shape=X.shape)
    assert ops(proto) == ["Loop"]
    compiled(proto)


@pytest.mark.usefixtures("few")
def test_nothing_is_read_but_constants() -> None:
    inside = body([node("Neg", "w", "a")], "a", "i on")
    nodes = [loop("n true", "p", inside), node("ReduceSum", "p", "q", keepdims=0)]
    proto = made([*nodes, node("Mul", "x q", "y")], 5, shape=X.shape)
    assert "Loop" not in ops(proto)
    compiled(proto)


@pytest.mark.usefixtures("few")
def test_values_that_change_places_and_begin_as_constants() -> None:
    inside = body(
        [node("Add", "a b", "sum"), node("Identity", "a", "before"), node("Tanh", "b", "o")],
        "sum before o",
        "i on a b",
    )
    for count in (5, 6):
        nodes = [loop("n true x zero", "y z u", inside)]
        proto = made(nodes, count, "y z u", X.shape, zero=np.full(X.shape, 0.5, "f4"))
        assert ops(proto) == ["Loop"]
        compiled(proto)


@pytest.mark.usefixtures("few")
def test_results_that_are_constants_inputs_and_each_other() -> None:
    inside = body(
        [node("Identity", n, f"{n}_") for n in ("x", "w", "s")] + [node("Tanh", "s", "t")],
        "t x_ w_ s_ t",
    )
    proto = made([loop("n true x", "y z u v o", inside)], 5, "y z u v o", X.shape)
    assert ops(proto) == ["Loop"]
    compiled(proto)


@pytest.mark.usefixtures("few")
def test_what_stays_and_what_nobody_reads_is_not_carried() -> None:
    inside = body(
        [
            node("Identity", "r", "same"),
            node("Mul", "s r", "p"),
            node("Add", "p unread", "dead"),
            node("Neg", "s", "n_"),
            node("Tanh", "p", "t"),
        ],
        "t same n_ dead p",
        "i on s r",
    )
    nodes = [node("Relu", "x", "unread"), loop("n true x x", "y same neg rows z", inside)]
    proto = made([*nodes, node("Identity", "same", "u")], 5, "y z u", X.shape)
    (found,) = run_passes(read_model(proto.SerializeToString()).bind({})).nodes[:1]
    assert found.op == "Loop"
    assert found.attributes["states"] == 1
    assert len(found.inputs) == 2
    assert found.outputs == ("y", "z")
    compiled(proto)


@pytest.mark.usefixtures("few")
def test_a_loop_that_changes_nothing() -> None:
    inside = body([node("Identity", "s", "same"), node("Tanh", "s", "t")], "same t")
    nodes = [loop("n true x", "s_ rows", inside), node("Neg", "s_", "y")]
    proto = made(nodes, 5, shape=X.shape)
    assert ops(proto) == ["Neg"]
    compiled(proto)


@pytest.mark.usefixtures("few")
def test_parts_of_what_is_read_and_carried() -> None:
    inside = body(
        [
            node("Split", "s", "a b", axis=0),
            node("Split", "x", "c d", axis=0),
            node("Mul", "b d", "e"),
            node("Concat", "e a", "f", axis=0),
            node("Reshape", "d flat", "g"),
        ],
        "f g b",
    )
    proto = made([loop("n true x", "y z u", inside)], 5, "y z u", X.shape, flat=np.array([6, -1]))
    assert ops(proto) == ["Loop"]
    compiled(proto)


@pytest.mark.usefixtures("few")
def test_what_follows_a_loop_takes_over_its_memory() -> None:
    tail = [
        node("Concat", "y r", "cat", axis=0),
        node("Relu", "z", "zr"),
        node("ReduceMean", "zr", "zm", axes=[0], keepdims=0),
        node("Add", "zm y", "p"),
    ]
    nodes = [node("Relu", "x", "outer"), loop("n true x", "y z u", STACKED)]
    for count in (5, 6):
        proto = made(
            [node("Neg", "x", "r"), *nodes[:1], loop("n true r", "y u z", STACKED), *tail],
            count,
            "cat p u",
            X.shape,
        )
        assert "Loop" in ops(proto)
        compiled(proto)


@pytest.mark.usefixtures("few")
def test_two_loops_with_other_weights_are_not_one() -> None:
    other = body([node("Conv", "s v", "c", pads=[1] * 4), node("Tanh", "c", "t")], "t")
    nodes = [loop("n true x", "p", CONV), loop("n true x", "q", other), node("Sub", "p q", "y")]
    proto = made(nodes, 5, shape=X.shape, v=-W[::-1])
    assert ops(proto) == ["Loop", "Loop", "Sub"]
    compiled(proto)


@pytest.mark.usefixtures("few")
def test_two_loops_with_the_same_weights_share_them() -> None:
    def weight_bytes(nodes: list[onnx.NodeProto]) -> int:
        return compiled(made(nodes, 5, shape=X.shape)).plan.weight_bytes

    one = [loop("n true x", "y", CONV)]
    two = [loop("n true x", "p", CONV), loop("n true p", "y", CONV)]
    assert weight_bytes(two) == weight_bytes(one)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("count", [3, 4, 5, 6])
@pytest.mark.parametrize("inner", [3, 4, 6])
def test_loops_in_loops(count: int, inner: int) -> None:
    nodes = [node("Relu", "x", "outer"), loop("n true x", "y z u k", NESTED)]
    proto = made(nodes, count, "y z u k", X.shape, many=np.int64(inner))
    assert ops(proto) == ["Relu", "Loop"]
    agree(proto, {"x": X})
    net = compiled(proto)
    assert net.plan.flops > count * inner * X.size * 2 * 27


@pytest.mark.usefixtures("few")
def test_loops_in_loops_in_loops() -> None:
    """What the innermost stacks is what the middle one carries, and stacks."""
    rows = [node("Tanh", "r", "o"), node("ReduceMean", "o", "f", axes=[0], keepdims=0)]
    innermost = body(rows, "o f", "i on_ r")
    middle = body([loop("n_ go s", "p q", innermost), node("Mul", "q p", "v")], "q v", "j go s")
    outermost = body([loop("m on a", "b c", middle), node("Neg", "b", "d")], "d c b", "k on a")
    for count in (3, 4):
        nodes = [loop("n true x", "y z u", outermost)]
        proto = made(nodes, count, "y z u", (3, 3), m=np.int64(count + 2), n_=np.int64(3))
        x = np.random.default_rng(0).uniform(0.5, 1.5, (3, 3)).astype(np.float32)
        assert ops(proto, x.shape) == ["Loop"]
        compiled(proto, x)


@pytest.mark.usefixtures("few")
def test_sizes_that_are_open() -> None:
    nodes = [
        node("Relu", "x", "outer"),
        node("Shape", "x", "shape"),
        node("Gather", "shape three", "n"),
        loop("n true x", "y z u", STACKED),
    ]
    proto = made(nodes, None, "y z u", three=np.int64(3))
    net = lc.load(proto.SerializeToString(), threads=1)
    for height, width in ((5, 3), (9, 3), (4, 7), (6, 8), (1, 1), (5, 3)):
        x = np.random.default_rng(5).standard_normal((1, 3, height, width)).astype(np.float32)
        found = net.run({"x": x})
        fresh = lc.load(proto.SerializeToString(), threads=1).run({"x": x})
        for name, wanted in reference(proto, {"x": x}).items():
            np.testing.assert_allclose(found[name], wanted, rtol=0, atol=1e-5)
            np.testing.assert_array_equal(found[name], fresh[name])


def test_sizes_on_both_sides_of_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_bodies, "FEW_WRITTEN_OUT", 15)
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape three", "n"),
        loop("n true x", "y", CONV),
    ]
    proto = made(nodes, None, three=np.int64(3))
    assert ops(proto, (1, 3, 4, 5)) == ["Conv"] * 5
    assert ops(proto, (1, 3, 4, 6)) == ["Loop"]
    net = lc.load(proto.SerializeToString(), threads=1)
    for width in (4, 6, 5, 7):
        x = np.random.default_rng(5).standard_normal((1, 3, 4, width)).astype(np.float32)
        np.testing.assert_allclose(
            net.run({"x": x})["y"], reference(proto, {"x": x})["y"], rtol=0, atol=1e-5
        )


def test_many_iterations_of_what_no_node_can_hold_are_written_out() -> None:
    ranged = [node("Range", "i three one", "r"), node("ReduceSum", "r", "m", keepdims=0)]
    sized = body([*ranged, node("Cast", "m", "f", to=1), node("Add", "s f", "t")], "t")
    held = {"three": np.array(300), "one": np.array(1)}
    assert set(ops(made([loop("n true x", "y", sized)], 100, **held))) <= {"Add", "Expression"}
    plain = body([node("Tanh", "s", "t")], "t")
    assert ops(made([loop("n true x", "y", plain)], 100)) == ["Loop"]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("count", [3, 4])
def test_the_number_of_an_iteration(count: int) -> None:
    numbered = [node("Cast", "i", "f", to=1), node("Mul", "s f", "t"), node("Mul", "i i", "square")]
    inside = body(numbered, "t square", kinds={"square": "int64"})
    nodes = [loop("n true x", "y squares", inside), node("Cast", "squares", "z", to=1)]
    proto = made(nodes, count, "y z")
    assert ops(proto) == ["Loop", "Cast"]
    compiled(proto)
    alone = body([node("Cast", "i", "f", to=1), node("Mul", "f two", "t")], "t", "i on")
    proto = made([loop("n true", "y", alone)], count, two=np.float32(2))
    compiled(proto)


@pytest.mark.usefixtures("few")
def test_values_of_other_types_inside_a_body() -> None:
    nodes = [
        node("Greater", "s zero", "g"),
        node("Neg", "s", "h"),
        node("Where", "g h x", "w_"),
        node("Cast", "w_", "c", to=6),
        node("Cast", "c", "f", to=1),
        node("ArgMax", "w_", "m", axis=1),
        node("Cast", "m", "n_", to=1),
        node("Add", "f n_", "a"),
        node("Tanh", "a", "t"),
    ]
    proto = made([loop("n true x", "y", body(nodes, "t"))], 5, zero=np.float32(0))
    assert ops(proto) == ["Loop"]
    compiled(proto)


@pytest.mark.usefixtures("few")
def test_what_is_no_float_is_stacked_captured_and_carried() -> None:
    inside = body(
        [
            node("Greater", "s outer", "g"),
            node("Cast", "s", "f", to=1),
            node("Add", "f x", "a"),
            node("Cast", "a", "t", to=7),
        ],
        "t g a",
        kinds={"s": "int64", "t": "int64", "g": "bool"},
    )
    for count in (5, 6):
        nodes = [
            node("Cast", "x", "first", to=7),
            node("Neg", "first", "outer"),
            loop("n true first", "last rows u", inside),
            node("Cast", "last", "y", to=1),
            node("Cast", "rows", "z", to=1),
        ]
        proto = made(nodes, count, "y z u", X.shape)
        assert ops(proto) == ["Cast", "Neg", "Loop", "Cast", "Cast"]
        compiled(proto, 3 * X)


# -- what is refused ---------------------------------------------------------------------------


def error(proto: onnx.ModelProto) -> str:
    with pytest.raises(LeanConvError) as caught:
        read_model(proto.SerializeToString()).bind({"x": X.shape})
    return str(caught.value)


def test_bodies_that_no_node_can_hold() -> None:
    ranged = [node("Range", "i n one", "r"), node("ReduceSum", "r", "m", keepdims=0)]
    sized = body([*ranged, node("Cast", "m", "f", to=1), node("Mul", "s f", "t")], "t")
    said = error(made([loop("n true x", "y", sized)], 5000, one=np.array(1)))
    assert "a node cannot hold more" in said
    growing = body([node("Concat", "s s", "t", axis=0)], "t")
    said = error(made([loop("n true x", "y", growing)], 5000))
    assert "it carries float32[2x3x6x6] and makes float32[4x3x6x6] of it" in said


def test_trip_counts_that_are_too_large() -> None:
    said = error(made([loop("n true x", "y", CONV)], 2**31))
    assert "at most 2147483647 times" in said
    stacked = body([node("Tanh", "s", "t"), node("Neg", "t", "u")], "t u")
    assert "bytes" in error(made([loop("n true x", "y z", stacked)], 2**31 - 1, "y z"))


@pytest.mark.usefixtures("few")
def test_a_condition_that_ends_after_one_iteration() -> None:
    inside = graph(
        [node("Tanh", "s", "t")],
        "off t",
        {"i": "int64", "on": "bool", "s": "float"},
        {"off": np.array(False)},
        {"off": "bool"},
    )
    proto = made([loop("n true x", "y", inside)], 5)
    assert ops(proto) == ["Tanh"]
    agree(proto, {"x": X})

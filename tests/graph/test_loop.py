"""Loop: a body that is computed again and again, with what is carried and what is stacked."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import leanconv as lc
from leanconv.errors import LeanConvError
from leanconv.graph.onnx_import import read_model
from support.control_flow import graph, node
from support.hostile import bounded, refused
from support.loops import CONV, X, body, loop, made, ops
from support.onnx_models import agree, imported, reference


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("condition", ["true", "-"])
def test_a_value_that_is_carried(count: int, condition: str) -> None:
    proto = made([loop(f"n {condition} x", "y", CONV)], count)
    agree(proto, {"x": X})
    assert ops(proto) == (["Conv"] * count or ["Reshape"])  # activations are fused


@pytest.mark.parametrize("count", [1, 3, 6])
def test_results_that_are_stacked(count: int) -> None:
    inside = body(
        [
            node("Conv", "s w", "c", pads=[1] * 4),
            node("Add", "c outer", "a"),
            node("ReduceMean", "a", "m", axes=[2, 3], keepdims=0),
            node("Neg", "a", "b"),
        ],
        "a m b",
    )
    nodes = [node("Relu", "x", "outer"), loop("n true x", "y z u", inside)]
    agree(made(nodes, count, "y z u"), {"x": X})


def test_nothing_carried() -> None:
    inside = body([node("Relu", "x", "a")], "a", "i on")
    agree(made([loop("n true", "y", inside)], 4), {"x": X})


def test_several_carried_that_change_places() -> None:
    inside = body(
        [node("Add", "a b", "sum"), node("Identity", "a", "before"), node("Neg", "b", "o")],
        "sum before o",
        "i on a b",
    )
    nodes = [node("Relu", "x", "r"), loop("n true x r", "y z u", inside)]
    agree(made(nodes, 5, "y z u"), {"x": X})


def test_what_is_carried_begins_as_a_constant() -> None:
    inside = body([node("Add", "s x", "a")], "a")
    agree(made([loop("n true zero", "y", inside)], 4, zero=np.zeros(X.shape, "f4")), {"x": X})


def test_all_that_is_read_is_constant() -> None:
    inside = body([node("Mul", "s two", "a"), node("Add", "a two", "b")], "a b")
    nodes = [loop("n true start", "p q", inside), node("Add", "x p", "u"), node("Mul", "u p", "y")]
    proto = made(nodes, 6, two=np.float32(2), start=np.ones((3, 1, 1), "f4"))
    agree(proto, {"x": X})
    assert ops(proto) == ["Expression"]


def test_a_constant_and_what_is_captured_as_results() -> None:
    inside = body(
        [node("Identity", "x", "same"), node("Identity", "w", "k"), node("Identity", "s", "t")],
        "t same k",
    )
    agree(made([loop("n true x", "y z u", inside)], 3, "y z u"), {"x": X})


def test_one_result_that_is_carried_and_stacked() -> None:
    inside = body([node("Tanh", "s", "t"), node("Identity", "t", "u")], "t u")
    agree(made([loop("n true x", "y z", inside)], 3, "y z"), {"x": X})


def test_loops_and_branches_inside_each_other() -> None:
    branch = node(
        "If",
        "large",
        "b",
        then_branch=graph([node("Add", "v x", "p")], "p"),
        else_branch=graph([node("Sub", "v outer", "q")], "q"),
    )
    inner = body(
        [
            node("Shape", "v", "shape"),
            node("Gather", "shape two", "height"),
            node("Greater", "height five", "large"),
            branch,
            node("Tanh", "b", "t"),
        ],
        "t",
        "j on2 v",
    )
    outer = body([loop("m on s", "a", inner), node("Conv", "a w", "c", pads=[1] * 4)], "c")
    nodes = [node("Relu", "x", "outer"), loop("n true x", "y", outer)]
    held = {"m": np.int64(3), "two": np.int64(2), "five": np.int64(5)}
    for height in (5, 6):
        x = np.random.default_rng(2).standard_normal((1, 3, height, 4)).astype(np.float32)
        agree(made(nodes, 4, **held), {"x": x})


def test_the_number_of_iterations_is_a_size() -> None:
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape three", "n"),
        loop("n - x", "y z", body([node("Tanh", "s", "t"), node("Neg", "t", "u")], "t u")),
    ]
    for width in (1, 2, 4, 7):
        x = np.random.default_rng(3).standard_normal((1, 2, 3, width)).astype(np.float32)
        agree(made(nodes, None, "y z", ("N", 2, "H", "W"), three=np.int64(3)), {"x": x})


def test_a_body_that_never_runs_need_not_fit() -> None:
    """Only what gives the types of stacks is looked at."""
    inside = body([node("Conv", "s w", "c"), node("Cast", "i", "f", to=1)], "c f")
    nodes = [loop("n - x", "y z", inside)]
    x = np.ones((1, 5, 2, 2), np.float32)  # too many channels, and no room for a filter
    agree(made(nodes, 0, "y z", ("N", "C", "H", "W")), {"x": x})
    with pytest.raises(LeanConvError, match="Conv"):
        read_model(made(nodes, 1, "y z", ("N", "C", "H", "W")).SerializeToString()).bind(
            {"x": x.shape}
        )


def test_stacks_of_nothing_are_as_declared_where_the_body_does_not_fit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = [
        node("Identity", "s", "t"),
        node("Conv", "s w", "c"),
        node("ReduceSum", "c", "r", keepdims=0),
        node("Cast", "i", "f", to=1),
    ]
    inside = body(nodes, "t c r f")
    for value in (1, "K"):
        dimension = inside.output[2].type.tensor_type.shape.dim.add()
        setattr(dimension, "dim_value" if value == 1 else "dim_param", value)
    x = np.ones((1, 5, 2, 2), np.float32)
    for shape in ((1, 5, 2, 2), ("N", "C", "H", "W")):
        proto = made([loop("n - x", "y c r f", inside)], 0, "y c r f", shape)
        expected, found = reference(proto, {"x": x}), lc.load(proto, threads=1).run({"x": x})
        shapes = {name: array.shape for name, array in found.items()}
        assert shapes == {name: array.shape for name, array in expected.items()}
        assert shapes["c"] == (0, 1, 0)
    assert not caplog.records


def test_the_iteration_number() -> None:
    inside = body(
        [
            node("Gather", "table i", "row"),
            node("Cast", "i", "f", to=1),
            node("Mul", "s row", "a"),
            node("Add", "a f", "b"),
        ],
        "b row",
    )
    table = np.random.default_rng(4).standard_normal((5, 3, 1, 1)).astype(np.float32)
    agree(made([loop("n true x", "y z", inside)], 5, "y z", table=table), {"x": X})


def test_a_condition_that_ends_the_loop() -> None:
    inside = graph(
        [node("Less", "i three", "more"), node("Tanh", "s", "t"), node("Neg", "t", "u")],
        "more t u",
        {"i": "int64", "on": "bool", "s": "float"},
        kinds={"more": "bool"},
    )
    for given in ("n true x", "- true x", "n - x"):
        agree(made([loop(given, "y z", inside)], 9, "y z", three=np.int64(3)), {"x": X})


def test_values_that_change_their_shape() -> None:
    inside = body([node("Concat", "s x", "c", axis=0)], "c")
    agree(made([loop("n true x", "y", inside)], 3), {"x": X})


def test_a_counter_that_is_carried() -> None:
    inside = body(
        [node("Add", "k k", "k2"), node("Cast", "k2", "f", to=1), node("Mul", "s f", "t")],
        "k2 t k2",
        "i on k s",
        {"k": "int64", "k2": "int64"},
    )
    nodes = [loop("n true one x", "last y all", inside)]
    proto = made(nodes, 4, "y", one=np.int64(1))
    agree(proto, {"x": X})


def test_a_body_that_says_stop_at_once() -> None:
    inside = graph(
        [node("Identity", "off", "more"), node("Tanh", "s", "t")],
        "more t",
        {"i": "int64", "on": "bool", "s": "float"},
        kinds={"more": "bool"},
    )
    agree(made([loop("n true x", "y", inside)], 9, off=np.array(False)), {"x": X})


def test_a_loop_that_is_not_begun() -> None:
    inside = body([node("Tanh", "s", "t"), node("Neg", "t", "u")], "t u")
    proto = made([loop("n off x", "y z", inside)], 9, "y z", off=np.array(False))
    assert_nothing_ran(proto)
    assert_nothing_ran(made([loop("n true x", "y z", inside)], 0, "y z"))
    assert_nothing_ran(made([loop("n true x", "y z", inside)], -3, "y z"))


def test_a_loop_is_compiled_for_each_number_of_iterations() -> None:
    inside = body(
        [
            node("Cast", "i", "f", to=1),
            node("Conv", "s w", "c", pads=[1] * 4),
            node("Add", "c f", "a"),
            node("Tanh", "a", "t"),
            node("ReduceMean", "t", "m", axes=[2, 3], keepdims=0),
        ],
        "t m",
    )
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape three", "n"),
        loop("n true x", "y z", inside),
    ]
    proto = made(nodes, None, "y z", three=np.int64(3))
    plain, threads = (lc.load(proto.SerializeToString(), threads=n) for n in (1, 2))
    for height, width in ((5, 3), (9, 3), (4, 7), (1, 1)):
        x = np.random.default_rng(5).standard_normal((1, 3, height, width)).astype(np.float32)
        found = plain.run({"x": x})
        for name, wanted in reference(proto, {"x": x}).items():
            np.testing.assert_allclose(found[name], wanted, atol=1e-5)
            assert found[name].shape == wanted.shape
        for name, array in threads.run({"x": x}).items():
            np.testing.assert_array_equal(array, found[name])


def test_weights_of_a_body_are_packed_once() -> None:
    plans = [lc.load(made([loop("n true x", "y", CONV)], n, shape=X.shape)).plan for n in (3, 9)]
    once = plans[0].steps[1].weight_bytes
    assert once > 0
    assert plans[1].weight_bytes == plans[0].weight_bytes
    assert plans[1].weight_bytes < 3 * once


def assert_nothing_ran(proto: onnx.ModelProto) -> None:
    # ONNX Runtime calls a stack of nothing (0,) where the file declares no shape.
    found = imported(proto, {"x": X})
    np.testing.assert_array_equal(found["y"], X)
    assert found["z"].shape == (0, *X.shape)


# -- what is refused ---------------------------------------------------------------------------


def error(proto: onnx.ModelProto) -> str:
    with bounded(5, 64 << 20), pytest.raises(LeanConvError) as caught:
        read_model(proto.SerializeToString()).bind({"x": X.shape})
    return str(caught.value)


def test_counts_and_conditions_on_data() -> None:
    data = [node("ReduceSum", "x", "sum", keepdims=0), node("Cast", "sum", "m", to=7)]
    assert "not supported on data yet" in error(made([*data, loop("m true x", "y", CONV)]))
    inside = graph(
        [
            node("Tanh", "s", "t"),
            node("ReduceSum", "t", "sum", keepdims=0),
            node("Greater", "sum zero", "more"),
        ],
        "more t",
        {"i": "int64", "on": "bool", "s": "float"},
        kinds={"more": "bool"},
    )
    for count in (2, 5, 10**6):
        said = error(made([loop("n true x", "y", inside)], count, zero=np.float32(0)))
        assert "on data" in said or "depends on data" in said
        assert "expected" in said


@pytest.mark.parametrize(
    ("count", "what"),
    [
        (np.float32(3), "expected one int64"),
        (np.int32(3), "expected one int64"),
        (np.array([3, 4]), "expected one int64"),
        (np.array([True]), "expected one int64"),
    ],
)
def test_counts_that_are_none(count: np.ndarray, what: str) -> None:
    assert what in error(made([loop("n true x", "y", CONV)], None, n=count))


def test_bodies_that_do_not_fit() -> None:
    for inside, inputs, outputs, what in (
        (CONV, "n true x x", "y", "the body has 3 inputs"),
        (CONV, "n true", "y", "the body has 3 inputs"),
        (CONV, "n true x", "y z", "the node has 2 outputs; expected 1"),
        (body([], "", "i on"), "n true x", "y", "the body has 2 inputs and 1 outputs"),
        (graph([], ""), "n true x", "y", "no outputs"),
        (body([node("Tanh", "gone", "t")], "t"), "n true x", "y", "nothing defines"),
        (body([node("Tanh", "y", "t")], "t"), "n true x", "y", "circle"),
        (CONV, "n", "y", "1 inputs; expected 2"),
        (CONV, "n true -", "y", "absent"),
    ):
        assert what in error(made([loop(inputs, outputs, inside)])), what
    twice = body([node("Tanh", "s", "t")], "t")
    twice.input[2].name = "i"
    assert "defined twice" in error(made([loop("n true x", "y", twice)]))
    assert "no attribute body" in error(made([node("Loop", "n true x", "y")]))
    assert "is no graph" in error(made([node("Loop", "n true x", "y", body=3)]))


def test_a_condition_that_is_no_bool() -> None:
    inside = graph([node("Tanh", "s", "t")], "i t", {"i": "int64", "on": "bool", "s": "float"})
    assert "expected one bool" in error(made([loop("n true x", "y", inside)]))


def test_loops_without_an_end() -> None:
    said = error(made([loop("- true x", "y", CONV)], None))
    assert "not ended after" in said


def test_huge_trip_counts() -> None:
    stacked = body([node("Tanh", "s", "t"), node("Neg", "t", "u")], "t u")
    said = error(made([loop("n true x", "y z", stacked)], 2**62, "y z"))
    assert f"a trip count of {2**62}; expected at most 682 where its body of 3 nodes" in said
    assert "it runs at most 2147483647 times" in said


def test_a_huge_trip_count_of_a_loop_that_ends() -> None:
    inside = graph(
        [node("Less", "i three", "more"), node("Tanh", "s", "t")],
        "more t",
        {"i": "int64", "on": "bool", "s": "float"},
        kinds={"more": "bool"},
    )
    agree(made([loop("n true x", "y", inside)], 2**62, three=np.int64(3)), {"x": X})


def test_constants_that_a_loop_computes_are_bounded() -> None:
    folded = body([node("Mul", "s s", "t")], "t")
    nodes = [loop("n true one", "p", folded), node("Mul", "x p", "y")]
    large = np.ones((3, 512, 512), "f4")
    assert "traffic" in error(made(nodes, 1000, one=large))


def test_loops_that_are_written_out_inside_each_other_come_to_an_end() -> None:
    sized = [node("Range", "i n one", "r"), node("ReduceSum", "r", "m", keepdims=0)]
    sized += [node("Cast", "m", "f", to=1)]  # no node can hold a range of that length
    inside = body([*sized, node("Mul", "s f", "t")], "t")
    for _ in range(12):
        inner = loop("n on s", "u", inside)
        inside = body([inner, *sized, node("Mul", "u f", "t")], "t")
    proto = made([loop("n true x", "y", inside)], 9, one=np.array(1))
    refused(proto.SerializeToString(), "nodes where", seconds=20)

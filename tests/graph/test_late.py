"""Networks whose last extents follow from values, against ONNX Runtime."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import leanconv as lc
from leanconv.errors import BudgetError, LeanConvError, ModelError, UnsupportedError
from leanconv.graph import data_dependent_stages
from leanconv.graph.file_graph import FileNode
from leanconv.graph.onnx_binding import Scope
from leanconv.graph.value import Value
from leanconv.symbolic import Trace
from support.control_flow import branch, graph, node
from support.onnx_models import Array, reference

R = np.random.default_rng(5)
KINDS = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "b": TensorProto.BOOL}
IMAGE = R.standard_normal((2, 3, 4, 5)).astype("f4")


def made(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    outputs: str,
    opened: bool = False,
    **held: Any,
) -> onnx.ModelProto:
    """A model: `outputs` are names with their kinds, as `y:i z:f`; all but axis 1 may be open."""
    given = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(array.dtype),
            [
                n if axis == 1 or not opened else f"{name}{axis}"
                for axis, n in enumerate(array.shape)
            ],
        )
        for name, array in inputs.items()
    ]
    pairs = [each.split(":") for each in outputs.split()]
    ends = [helper.make_tensor_value_info(name, KINDS[kind], None) for name, kind in pairs]
    constants = [numpy_helper.from_array(np.asarray(a), name) for name, a in held.items()]
    graph = helper.make_graph(list(nodes), "late", given, ends, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def agrees(proto: onnx.ModelProto, *feeds: Mapping[str, Array]) -> lc.Network:
    """Compare the outputs for inputs with ONNX Runtime's; gives the network."""
    network = lc.load(proto, threads=1)
    for feed in feeds:
        expected, found = reference(proto, feed), network.run(feed)
        assert list(found) == list(expected)
        for name, array in expected.items():
            assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype), name
            assert found[name].flags.writeable
            np.testing.assert_allclose(found[name], array, 1e-5, 1e-5, err_msg=name)
    return network


@pytest.mark.parametrize("opened", [False, True])
def test_places_of_what_is_not_zero(opened: bool) -> None:
    nodes = [
        node("Relu", "x", "r"),
        node("NonZero", "r", "y"),
        node("Shape", "y", "s"),
        node("Transpose", "y", "t", perm=[1, 0]),
        node("Cast", "t", "f", to=TensorProto.FLOAT),
        node("Neg", "r", "z"),
    ]
    proto = made(nodes, {"x": IMAGE}, "z:f y:i s:i f:f", opened)
    network = agrees(proto, {"x": IMAGE}, {"x": -np.abs(IMAGE)}, {"x": np.abs(IMAGE) + 1})
    assert network.outputs[1].dtype == "int64"
    assert "NumPy computes 3 nodes (Cut, Shape)" in network.explain()
    assert "no error is stated: none of what is compiled is a convolution" in network.explain()


def test_a_network_of_late_nodes_alone() -> None:
    proto = made([node("NonZero", "x", "y"), node("Identity", "x", "z")], {"x": IMAGE}, "y:i z:f")
    agrees(proto, {"x": IMAGE * (R.random(IMAGE.shape) > 0.5)})


@pytest.mark.parametrize("axis", [None, 1, -1])
def test_compress(axis: int | None) -> None:
    given = {} if axis is None else {"axis": axis}
    nodes = [node("Greater", "c zero", "flags"), node("Compress", "x flags", "y", **given)]
    feeds = [{"x": IMAGE, "c": np.array(c, "f4")} for c in ([1, 0, 1], [0, 0], [0, 0, 1])]
    feeds += [{"x": IMAGE, "c": np.ones(shape, "f4")} for shape in ((2, 2), (200,), (2, 1, 70))]
    for feed in feeds:
        agrees(made(nodes, feed, "y:f", zero=np.float32(0)), feed)


@pytest.mark.parametrize("given", [{}, {"sorted": 0}, {"axis": 0}, {"axis": 1, "sorted": 0}])
def test_unique(given: dict[str, int]) -> None:
    x = R.integers(0, 3, (6, 4)).astype("f4")
    x[2] = x[4]
    nodes = [node("Abs", "x", "a"), node("Unique", "a", "y first which count", **given)]
    agrees(made(nodes, {"x": x}, "y:f first:i which:i count:i"), {"x": x})


@pytest.mark.parametrize("given", [{}, {"axis": 0}])
def test_unique_of_few_integers(given: dict[str, int]) -> None:
    """Whose values may be symbols, which have no order."""
    inputs = [{"x": R.integers(-2, 3, 6)} for _ in range(2)]
    agrees(made([node("Unique", "x", "y", **given)], inputs[0], "y:i"), *inputs)


def test_results_and_operands_that_are_absent() -> None:
    nodes = [
        helper.make_node("Unique", ["x"], ["u", "", "which"]),
        node("Clip", "u - six", "y"),
    ]
    proto = made(nodes, {"x": IMAGE}, "y:f which:i", six=np.float32(6))
    network = agrees(proto, {"x": IMAGE}, {"x": np.round(IMAGE)})
    assert "nothing bounds" not in network.explain()


NMS = {"most": np.array([5]), "iou": np.array([0.4], "f4"), "least": np.array([0.3], "f4")}


def boxes(count: int, classes: int, images: int = 1, spread: float = 3.0) -> dict[str, Array]:
    """Boxes by two corners in any order; some scores are equal."""
    corners = R.random((images, count, 2, 1), "f4") * spread
    sides = corners + R.random((images, count, 2, 2), "f4") - 0.2
    scores = R.integers(0, 100, (images, classes, count)).astype("f4") / 100
    return {"b": sides.transpose(0, 1, 3, 2).reshape(images, count, 4), "s": scores}


@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize("operands", ["most iou least", "most iou", "most", "most - least", ""])
def test_boxes_that_are_kept(operands: str, centred: int) -> None:
    each = node("NonMaxSuppression", f"b s {operands}", "y", center_point_box=centred)
    feed = boxes(300, 3, 2)
    proto = made([each], feed, "y:i", opened=True, **NMS)
    none = {"b": feed["b"], "s": feed["s"] * 0}
    spoiled = {name: array.copy() for name, array in feed.items()}
    spoiled["b"][0, ::7] *= -1
    spoiled["b"][1, ::9] = 0
    agrees(proto, feed, none, spoiled)
    feed = boxes(600, 2, spread=1.0)
    agrees(made([each], feed, "y:i", **NMS), feed)


def test_boxes_with_nan_end() -> None:
    feed = boxes(40, 2)
    feed["b"][0, ::3], feed["s"][0, :, ::4] = np.nan, np.nan
    feed["b"][0, 1::3] = np.inf
    huge = {**NMS, "most": np.array([2**62])}
    found = lc.load(made([node("NonMaxSuppression", "b s most iou", "y")], feed, "y:i", **huge))
    assert found.run(feed)["y"].shape[1] == 3


def test_boxes_by_numbers_that_are_data() -> None:
    """What the operator reads may be inputs, or follow from values; some are given, some not."""
    feed = {**boxes(90, 4), "most": np.array([7]), "iou": np.float32([0.3]), "least": NMS["least"]}
    each = node("NonMaxSuppression", "b s most iou least", "y")
    more = {**feed, "most": np.array([2]), "iou": np.float32([0.9]), "least": np.float32([0.8])}
    proto = made([each], feed, "y:i", opened=True)
    network = agrees(proto, feed, more, {**feed, **boxes(90, 4, 2)})
    with pytest.raises(LeanConvError, match="iou_threshold"):
        network.run({**feed, "iou": np.float32([1.5])})
    late = [node("Compress", "b flags", "c", axis=1), node("NonMaxSuppression", "c s most", "y")]
    flags = np.arange(90) % 4 != 1
    feed = {"b": feed["b"], "s": feed["s"][:, :, flags], "flags": flags}
    agrees(made(late, feed, "y:i", **NMS), feed)


def test_boxes_of_one_class_of_many() -> None:
    """So many candidates that they are sorted by digits, and boxes far from each other."""
    for spread in (2.0, 60.0):
        feed = boxes(3000, 1, spread=spread)
        feed["s"] = R.standard_normal(feed["s"].shape).astype("f4")
        each = node("NonMaxSuppression", "b s most iou", "y")
        agrees(made([each], feed, "y:i", **{**NMS, "most": np.array([900])}), feed)


def detector() -> onnx.ModelProto:
    """Boxes and scores by a convolution, then what exporters write behind them."""
    nodes = [
        node("Conv", "x w", "c", strides=[4, 4]),
        node("Reshape", "c rows", "r"),
        node("Split", "r parts", "b k", axis=1),
        node("Transpose", "b", "t", perm=[0, 2, 1]),
        node("Sigmoid", "k", "scores"),
        node("NonMaxSuppression", "t scores most iou least", "kept"),
        node("Gather", "kept two", "column", axis=1),
        node("Squeeze", "column one", "which"),
        node("Gather", "t which", "picked", axis=1),
        node("Squeeze", "picked zero", "corners"),
        node("Cast", "kept", "numbers", to=TensorProto.FLOAT),
        node("Concat", "numbers corners", "y", axis=1),
    ]
    held = {
        **{name: np.array([number]) for name, number in (("two", 2), ("one", 1), ("zero", 0))},
        "w": R.standard_normal((7, 3, 4, 4)).astype("f4") * 0.2,
        "rows": np.array([1, 7, -1]),
        "parts": np.array([4, 3]),
        **NMS,
    }
    inputs = {"x": np.zeros((1, 3, 32, 48), "f4")}
    return made(nodes, inputs, "y:f kept:i scores:f", opened=True, **held)


def test_a_detector() -> None:
    x = R.standard_normal((1, 3, 32, 48)).astype("f4")
    network = agrees(detector(), {"x": x}, {"x": x[:, :, :16, :24]}, {"x": -x})
    none = made(
        [node("Mul", "x zero", "a"), node("NonZero", "a", "y")], {"x": x}, "y:i", zero=np.float32(0)
    )
    assert agrees(none, {"x": x}).run({"x": x})["y"].shape == (4, 0)
    plan = network.plan
    assert plan.memory_bytes == network.used_bytes
    kept = 3 * 5 * 3 * 8  # (batch, class, box) of all that may be kept
    assert kept < plan.late_bytes < 20 * kept + 4 * 7 * 96 + 10_000
    assert f"arrays behind them at most {plan.late_bytes} bytes" in network.explain()
    limited = lc.load(detector(), threads=1, memory_limit=plan.memory_bytes)
    assert limited.run({"x": x})["y"].shape[1] == 7
    with pytest.raises(BudgetError, match="for arrays that depend on values") as caught:
        lc.load(detector(), threads=1, memory_limit=plan.late_bytes // 2).run({"x": x})
    least = lc.load(detector(), threads=1, memory_limit=caught.value.smallest_bytes)
    least.bind(x.shape)
    assert least.plan.memory_bytes <= caught.value.smallest_bytes
    with pytest.raises(LeanConvError):
        network.run({"x": x[0]})


def test_extents_and_numbers_that_are_data() -> None:
    """What must be a constant in a graph is known in a run."""
    nodes = [
        node("Relu", "x", "r"),
        node("Slice", "r start end", "sliced"),
        node("Reshape", "r shape", "reshaped"),
        node("Expand", "start shape", "expanded"),
        node("Tile", "end end", "tiled"),
        node("ConstantOfShape", "shape", "filled"),
        node("Range", "from to by", "counted"),
        node("TopK", "r k", "top places", axis=3),
        node("Resize", "r - - sizes", "resized", mode="nearest"),
        node("Pad", "r pads", "padded"),
        node("ReduceSum", "r axes", "summed"),
        node("Squeeze", "start", "dropped"),
    ]
    feed = {
        "x": IMAGE,
        "start": np.array([1]),
        "end": np.array([2]),
        "shape": np.array([6, 20]),
        "from": np.array(1),
        "to": np.array(9),
        "by": np.array(3),
        "k": np.array([2]),
        "sizes": np.array([2, 3, 7, 9]),
        "pads": np.array([0, 0, 1, 2, 0, 0, 0, 1]),
        "axes": np.array([1, 2]),
    }
    outputs = (
        "sliced:f reshaped:f expanded:i tiled:i filled:f counted:i top:f places:i resized:f "
        "padded:f summed:f dropped:i"
    )
    casts = [node("Cast", f"{n}_", n, to=TensorProto.INT64) for n in feed if n != "x"]
    floats = {n if n == "x" else f"{n}_": array.astype("f4") for n, array in feed.items()}
    agrees(made([*casts, *nodes], floats, outputs), floats)


W = R.standard_normal((4, 3, 3, 3)).astype("f4") * 0.3


def test_convolutions_behind_what_depends_on_values() -> None:
    """They are compiled when extents are known, with shape arithmetic of their own."""
    nodes = [
        node("Cast", "k", "shape", to=TensorProto.INT64),
        node("Relu", "x", "r"),
        node("Reshape", "r shape", "q"),
        node("Conv", "q w", "c", pads=[1] * 4),
        node("Shape", "c", "extents"),
        node("Gather", "extents zero", "batch"),
        node("Unsqueeze", "batch axes", "first"),
        node("Concat", "first rest", "flat", axis=0),
        node("MaxPool", "c", "p", kernel_shape=[2, 2]),
        node("Reshape", "p flat", "f"),
        node("NonZero", "f", "places"),
        node("Conv", "p v", "y"),
    ]
    held = {"w": W, "v": W[:, [0, 1, 2, 0], :1, :1], "zero": np.array(0), "axes": np.array([0])}
    shapes = ([2, 3, 8, 8], [1, 3, 16, 8], [4, 3, 4, 8], [2, 3, 8, 8])
    x = R.standard_normal((2, 3, 8, 8)).astype("f4")
    feeds = [{"x": x, "k": np.array(shape, "f4")} for shape in shapes]
    proto = made(nodes, feeds[0], "y:f f:f places:i", **held, rest=np.array([-1]))
    network = agrees(proto, *feeds)
    assert "what is compiled once its extents are known" in network.explain()
    double = lc.load(proto, threads=1, dtype="float64").run({**feeds[0], "x": x.astype("f8")})
    assert double["y"].dtype == np.float64
    np.testing.assert_allclose(double["y"], network.run(feeds[0])["y"], 1e-4, 1e-5)
    wrong = {"x": x, "k": np.array([7, 3, 8, 8], "f4")}
    with pytest.raises(LeanConvError, match="Reshape"):
        network.run(wrong)


def test_maps_that_are_found() -> None:
    """Of no map, too, a convolution gives what fits it."""
    nodes = [
        node("ReduceMax", "x", "m", axes=[1, 2, 3], keepdims=0),
        node("Greater", "m two", "flags"),
        node("Compress", "x flags", "some", axis=0),
        node("Conv", "some w", "c"),
        node("Relu", "c", "y"),
    ]
    x = np.clip(R.standard_normal((5, 3, 6, 7)), -1, 1).astype("f4")
    more = x.copy()
    more[[1, 3, 4], 0, 0, 0] = 3
    network = lc.load(made(nodes, {"x": x}, "y:f", w=W, two=np.float32(2)))
    assert network(x).shape == (0, 4, 4, 5)
    agrees(made(nodes, {"x": x}, "y:f", w=W, two=np.float32(2)), {"x": more})


def test_branches_on_data() -> None:
    def branch_of(name: str) -> onnx.GraphProto:
        return graph([node("Conv", f"x {name}", "c"), node("Neg", "c", "n")], "n")

    nodes = [
        node("ReduceMean", "x", "m", keepdims=0),
        node("Greater", "m zero", "positive"),
        branch("positive", "i", branch_of("w"), branch_of("v")),
        node("Relu", "i", "y"),
    ]
    x = R.standard_normal((1, 3, 5, 6)).astype("f4")
    proto = made(nodes, {"x": x}, "y:f", w=W, v=-W, zero=np.float32(0))
    agrees(proto, {"x": x + 1}, {"x": x - 1}, {"x": x + 2})


def test_results_are_arrays_of_their_own() -> None:
    """Whoever changes one changes no input, no weight, and no other result."""
    same = graph([node("Identity", "x", "i"), node("Identity", "held", "j")], "i j")
    other = graph([node("Neg", "x", "n"), node("Neg", "held", "k")], "n k")
    nodes = [
        node("ReduceMean", "x", "m", keepdims=0),
        node("Greater", "m zero", "positive"),
        branch("positive", "y z", same, other),
        node("Identity", "y", "again"),
    ]
    x = np.ones((2, 3, 4), "f4")
    held = np.arange(6, dtype="f4")
    proto = made(nodes, {"x": x}, "y:f z:f again:f", held=held, zero=np.float32(0))
    network = agrees(proto, {"x": x}, {"x": -x})
    for _ in range(2):
        found = network.run({"x": x})
        for name, expected in {"y": x, "z": held, "again": x}.items():
            np.testing.assert_array_equal(found[name], expected)
            found[name][:] = -7
    np.testing.assert_array_equal(x, 1)


@pytest.mark.parametrize("layer", ["Conv", "Mul"])
def test_loops_that_data_ends(layer: str) -> None:
    inside = graph(
        [
            node(layer, "s w", "c", **({"pads": [1] * 4} if layer == "Conv" else {})),
            node("Tanh", "c", "t"),
            node("ReduceMax", "t", "m", keepdims=0),
            node("Greater", "m least", "more"),
        ],
        "more t m",
        {"i": "int64", "on": "bool", "s": "float"},
        kinds={"more": "bool"},
    )
    nodes = [node("Loop", "- true x", "y rows", body=inside), node("Size", "rows", "count")]
    x = R.standard_normal((1, 3, 6, 6)).astype("f4")
    w = W[:3] * 0.2 if layer == "Conv" else np.float32(0.7)
    held = {"w": w, "true": np.array(True), "least": np.float32(0.01)}
    agrees(made(nodes, {"x": x}, "y:f rows:f count:i", **held), {"x": x}, {"x": 0 * x})


def test_trip_counts_and_weights_that_are_data() -> None:
    inside = graph(
        [node("Identity", "on", "more"), node("Cast", "i", "f", to=1), node("Add", "s f", "t")],
        "more t f",
        {"i": "int64", "on": "bool", "s": "float"},
        kinds={"more": "bool"},
    )
    nodes = [
        node("ReduceSum", "n", "sum", keepdims=0),
        node("Loop", "sum - x", "y rows", body=inside),
    ]
    counts = [np.full((40, 40), number) for number in (2, 0, 1)]  # no setting: it is large
    feeds = [{"x": IMAGE, "n": count} for count in counts]
    agrees(made(nodes, feeds[0], "y:f rows:f"), *feeds)
    each = [node("Relu", "w", "v"), node("Conv", "x v", "y")]
    agrees(made(each, {"x": IMAGE, "w": W}, "y:f"), {"x": IMAGE, "w": W})


def test_threads_that_bind_nodes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One finds out what numbers are asked for while another names those that it knows of."""
    nodes = [node("Compress", "n flags", "c", axis=0), node("Reshape", "x c", "y")]
    flags = np.array([True, False, True, True])
    feed = {"x": R.random(12).astype("f4"), "n": np.array([3, 7, 2, 2]), "flags": flags}
    proto = made(nodes, feed, "y:f", opened=True)
    for when in range(3):
        network, results, calls = lc.load(proto, threads=1), list[Array](), iter(range(100))

        def other(network: lc.Network = network, results: list[Array] = results) -> None:
            results.append(network.run(feed)["y"])

        class Interrupted(Trace):
            thread = threading.Thread(target=other)

            def variable(self, *given: Any) -> Any:
                if threading.current_thread() is not self.thread and next(calls) == when:  # noqa: B023
                    self.thread.start()
                    self.thread.join()
                return super().variable(*given)

        with monkeypatch.context() as patched:
            patched.setattr(data_dependent_stages, "Trace", Interrupted)
            results.append(network.run(feed)["y"])
        results.append(network.run(feed)["y"])
        assert len(results) > 2 or when > 1
        for found in results:
            np.testing.assert_array_equal(found, feed["x"].reshape(3, 2, 2))


def test_nodes_are_bound_once_for_all_that_may_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for how many there are: none, one, several."""
    x = R.random((40, 3)).astype("f4")
    nodes = [
        node("Compress", "x flags", "c", axis=0),
        node("Shape", "c", "s"),
        node("ConstantOfShape", "s", "zeros"),
        node("Softmax", "c", "p", axis=0),
        node("Add", "p zeros", "q"),
        node("Slice", "q zero most", "y"),
        node("Unique", "q", "u"),
        node("TopK", "u one", "t places", axis=0),
    ]
    held = {"zero": np.array([0]), "most": np.array([7]), "one": np.array([1])}
    feeds = [{"x": x, "flags": np.arange(40) % n == 0} for n in range(1, 30)]
    proto = made(nodes, feeds[0], "y:f t:f", **held)
    network = agrees(proto, *feeds)
    bound: list[str] = []
    bind = Scope.bind

    def counted(self: Scope, nodes: Sequence[FileNode], outputs: Sequence[str]) -> list[Value]:
        bound.extend(node.op for node in nodes)
        return bind(self, nodes, outputs)

    monkeypatch.setattr(Scope, "bind", counted)
    for feed in feeds:
        network.run(feed)
    assert set(bound) == {"Unique"}


def test_values_that_do_not_fit_are_refused_in_the_run() -> None:
    feed = {"x": IMAGE, "s": np.array([7, 3])}
    network = lc.load(made([node("Reshape", "x s", "y")], feed, "y:f"))
    with pytest.raises(ModelError, match="Reshape"):
        network.run(feed)
    feed["s"] = np.array([2, 60])
    assert network.run(feed)["y"].shape == (2, 60)
    nodes = [node("Cast", "k", "s", to=TensorProto.INT64), node("ConstantOfShape", "s", "y")]
    late = made(nodes, {"k": np.zeros(2, "f4")}, "y:f")
    assert "nothing bounds its arrays but the run: at most 1 GiB" in lc.load(late).explain()
    for limit, extents in ((None, (1 << 20, 1 << 15)), (1000, (20, 30))):
        network = lc.load(late, memory_limit=limit)
        with pytest.raises(UnsupportedError, match="in this run; expected at most"):
            network.run({"k": np.array(extents, "f4")})
        assert network.run({"k": np.array([4, 5], "f4")})["y"].shape == (4, 5)

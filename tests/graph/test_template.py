"""One graph with symbols serves all shapes that answer its guards alike."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from onnx import helper

from leanconv.errors import InputError, ModelError
from leanconv.graph import template
from leanconv.graph.ir import TensorType
from leanconv.graph.limits import SpentError
from leanconv.graph.onnx_import import Model, read_model
from leanconv.graph.passes import run_passes
from leanconv.graph.template import Templates
from leanconv.symbolic import Symbol, expressions
from leanconv.types import FLOAT32
from support.onnx_models import model, small_cnn
from support.templates import graph_text


def node(op: str, inputs: list[str], output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs, [output], **attributes)


def pyramid() -> Model:
    """A map halved, doubled and added: only even sizes fit; then a matrix of its pixels."""
    w = np.ones((4, 3, 3, 3), np.float32)
    held = {
        "w": w,
        "scales": np.array([1, 1, 2, 2], np.float32),
        "first": np.array([0]),
        "second": np.array([1]),
        "rest": np.array([-1]),
        "four": np.array([4]),
    }
    nodes = [
        node("Conv", ["x", "w"], "a", pads=[1, 1, 1, 1]),
        node("MaxPool", ["a"], "b", kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", ["b", "", "scales"], "c", coordinate_transformation_mode="asymmetric"),
        node("Add", ["a", "c"], "d"),
        node("Shape", ["d"], "s"),
        node("Slice", ["s", "first", "second"], "n"),
        node("Cast", ["n"], "n32", to=6),
        node("Cast", ["n32"], "n64", to=7),
        node("Concat", ["n64", "four", "rest"], "t", axis=0),
        node("Reshape", ["d", "t"], "e"),
        node("Transpose", ["e"], "y", perm=[0, 2, 1]),
    ]
    proto = model(nodes, {"x": ("N", 3, "H", "W")}, ["y"], held)
    return read_model(proto.SerializeToString())


class Counted:
    """How often a model was bound, and the templates that do it."""

    def __init__(self, read: Model) -> None:
        self.read, self.times = read, 0
        self.templates = Templates(read, self._bound)

    def _bound(self, shapes: Any) -> Any:
        self.times += 1
        return run_passes(self.read.bind(shapes))

    def check(self, *shape: int) -> int:
        """Compare with binding to numbers; how often the model was bound so far."""
        found = self.templates.graph([shape])
        direct = run_passes(self.read.bind({self.read.inputs[0].name: shape}))
        assert graph_text(found) == graph_text(direct)
        return self.times


def test_one_template_serves_all_sizes() -> None:
    counted = Counted(pyramid())
    assert [counted.check(1, 3, 8, w) for w in (4, 6, 34, 1000)] == [1, 1, 1, 1]
    assert counted.check(2, 3, 10, 6) == 2  # a batch of one is a template of its own
    assert counted.check(7, 3, 12, 8) == 2


def test_what_differs_in_structure_has_a_template_of_its_own() -> None:
    counted = Counted(pyramid())
    counted.check(1, 3, 8, 6)
    assert counted.check(1, 3, 2, 2) == 2  # a map of one pixel is pooled to
    assert counted.check(1, 3, 16, 6) == 2


def test_shapes_that_do_not_fit_are_refused_each_time() -> None:
    counted = Counted(pyramid())
    counted.check(1, 3, 8, 6)
    for _ in range(2):
        with pytest.raises(ModelError, match="do not broadcast"):
            counted.templates.graph([(1, 3, 8, 7)])
    with pytest.raises(InputError, match="got the shape") as caught:
        counted.templates.graph([(1, 4, 8, 6)])
    assert caught.value.__context__ is None  # what a symbol met is not the user's
    times = counted.times
    assert counted.check(1, 3, 8, 66) == times


def test_constants_are_shared() -> None:
    templates = Counted(pyramid()).templates
    one, other = (templates.graph([(1, 3, 8, w)]) for w in (6, 10))
    held = [name for name, array in one.constants.items() if array.size > 4]
    assert held
    assert all(one.constants[name] is other.constants[name] for name in held)


def test_templates_of_one_network_share_their_constants() -> None:
    network = halved(ceil=False)
    one, other = (network.templates.graph([shape]) for shape in ((1, 3, 8, 6), (5, 3, 8, 6)))
    assert network.times == 2
    held = [name for name, array in one.constants.items() if array.size > 4]
    assert held
    assert all(one.constants[name] is other.constants[name] for name in held)


def test_arrays_of_equal_elements_stay_as_many_as_they_are() -> None:
    held = {name: np.ones((4, 3, 1, 1), np.float32) for name in ("w", "v")}
    nodes = [
        *(node("Conv", ["x", "w"], "a"), node("Conv", ["x", "v"], "b")),
        *(node("Sigmoid", ["a"], "c"), node("Mul", ["b", "c"], "y")),
    ]
    proto = model(nodes, {"x": ("N", 3, "H", "W")}, ["y"], held)
    templates = Counted(read_model(proto.SerializeToString())).templates
    for shape in ((1, 3, 8, 6), (5, 3, 8, 6)):
        weights = [a for a in templates.graph([shape]).constants.values() if a.size == 12]
        assert len({id(array) for array in weights}) == 2, shape


def halved(ceil: bool) -> Counted:
    """A normalised convolution in steps of two, a pool in steps of two, and a matrix of pixels."""
    held = {"w": np.ones((8, 3, 3, 3), np.float32), "b": np.ones(8, np.float32)}
    held["shape"] = np.array([0, 8, -1])
    steps = {"kernel_shape": [3, 3], "strides": [2, 2]}
    nodes = [
        node("Conv", ["x", "w"], "a", pads=[1, 1, 1, 1], **steps),
        node("BatchNormalization", ["a", "b", "b", "b", "b"], "n"),
        node("MaxPool", ["n"], "p", ceil_mode=int(ceil), **steps),
        node("Reshape", ["p", "shape"], "m"),
        node("Transpose", ["m"], "y", perm=[0, 2, 1]),
    ]
    proto = model(nodes, {"x": ("N", 3, "H", "W")}, ["y"], held)
    return Counted(read_model(proto.SerializeToString()))


def test_whether_a_step_is_left_over_is_no_guard() -> None:
    network = halved(ceil=False)
    widths = (*range(12, 44), 150, 333)  # 29 to 32 have as many pixels as channels
    assert {network.check(1, 3, 8, width) for width in widths} == {1}
    assert halved(ceil=True).check(1, 3, 8, 7) == 1


def test_expressions_that_are_nought_are_filled_in_too() -> None:
    steps = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [node("MaxPool", ["x"], "y", auto_pad="SAME_UPPER", **steps)]
    proto = model(nodes, {"x": ("N", 8, "H", "W")}, ["y"], {})
    network = Counted(read_model(proto.SerializeToString()))
    for size in (10, 8, 30):  # no padding: half of none before the map, and none after it
        network.check(1, 8, size, size)
    assert network.times == 1


@pytest.mark.parametrize(("most", "times"), [(0, 2), (2**20, 1)])
def test_many_folded_constants_are_not_kept(
    monkeypatch: pytest.MonkeyPatch, most: int, times: int
) -> None:
    monkeypatch.setattr(template, "_MOST_KEPT_BYTES", most)
    counted = Counted(read_model(small_cnn().SerializeToString()))
    assert [counted.check(2, 3, 32, width) for width in (32, 48)][-1] == times


def test_a_network_of_shape_arithmetic() -> None:
    read = read_model(small_cnn().SerializeToString())
    counted = Counted(read)
    shapes = [(2, 3, 32, 32), (3, 3, 32, 48), (5, 3, 64, 36)]
    assert [counted.check(*shape) for shape in shapes] == [1, 1, 1]


def positions(*, whole: bool, more: list[Any]) -> Counted:
    """A map, of which the number `r` of each column, counted in integers or floats, is read."""
    held = {"three": np.array(3), "scale": np.array([1, 1, 1], np.float32), "one": np.float32(1)}
    held |= {n: np.array(i, np.int64 if whole else "f4") for i, n in enumerate(("from", "by"))}
    nodes = [
        node("Shape", ["x"], "s"),
        node("Gather", ["s", "three"], "extent"),
        node("Identity" if whole else "Cast", ["extent"], "w", **({} if whole else {"to": 1})),
        node("Range", ["from", "w", "by"], "r"),
        node("Cast", ["r"], "f", to=1),
        *more,
    ]
    proto = model(nodes, {"x": (1, 3, 4, "W")}, ["y"], held)
    return Counted(read_model(proto.SerializeToString()))


@pytest.mark.parametrize("whole", [False, True])
def test_data_that_sizes_decide_is_computed_for_each(whole: bool) -> None:
    """What a range becomes, a mask, a constant as large as the map: one template."""
    more = [
        node("Greater", ["f", "one"], "mask"),
        node("ConstantOfShape", ["s"], "zeros"),
        node("Add", ["zeros", "f"], "grid"),
        node("Mul", ["x", "grid"], "scaled"),
        node("Where", ["mask", "scaled", "zeros"], "y"),
    ]
    counted = positions(whole=whole, more=more)
    assert [counted.check(1, 3, 4, width) for width in (5, 6, 5, 9, 300)] == [1] * 5


def test_where_numbers_are_needed_each_shape_is_bound() -> None:
    """The numbers of a range decide how large the result is."""
    more = [
        node("ReduceMax", ["f"], "last", keepdims=1),
        node("Concat", ["scale", "last"], "scales", axis=0),
        node("Resize", ["x", "", "scales"], "y"),
    ]
    counted = positions(whole=False, more=more)
    assert [counted.check(1, 3, 4, width) for width in (5, 6, 5)] == [1, 2, 2]


def test_an_output_that_sizes_decide_is_computed_for_each() -> None:
    counted = positions(whole=False, more=[node("Add", ["f", "one"], "y")])
    assert [counted.check(1, 3, 4, width) for width in (5, 6, 9)] == [1, 1, 1]


def test_weights_as_large_as_a_map_serve_its_size() -> None:
    """A whole map is flattened into a layer: other sizes do not fit its weights."""
    held = {"w": np.ones((8 * 5 * 6, 7), np.float32)}
    nodes = [node("Flatten", ["x"], "f"), node("MatMul", ["f", "w"], "y")]
    proto = model(nodes, {"x": ("N", 8, "H", "W")}, ["y"], held)
    counted = Counted(read_model(proto.SerializeToString()))
    assert [counted.check(batch, 8, 5, 6) for batch in (2, 3, 9)] == [1, 1, 1]
    assert counted.check(2, 8, 6, 5) == 2
    with pytest.raises(ModelError):
        counted.templates.graph([(2, 8, 6, 6)])


def test_a_cubic_map_serves_its_size() -> None:
    """Its matrices are data; batches share a template."""
    nodes = [node("Resize", ["x", "", "scales"], "y", mode="cubic")]
    held = {"scales": np.array([1, 1, 2, 1.5], np.float32)}
    proto = model(nodes, {"x": ("N", 3, "H", "W")}, ["y"], held)
    counted = Counted(read_model(proto.SerializeToString()))
    assert [counted.check(batch, 3, 8, 6) for batch in (2, 3, 9)] == [1, 1, 1]
    assert counted.check(2, 3, 8, 10) == 2


def test_integers_of_shapes_that_are_outputs_are_filled_in() -> None:
    proto = model([node("Shape", ["x"], "y")], {"x": (1, 3, "H", "W")}, [], {})
    proto.graph.output.append(helper.make_tensor_value_info("y", 7, [4]))
    counted = Counted(read_model(proto.SerializeToString()))
    assert [counted.check(1, 3, 8, width) for width in (6, 9, 30)] == [1, 1, 1]


def test_two_inputs_of_one_symbol() -> None:
    proto = model([node("Add", ["a", "b"], "y")], {"a": ("N", 4), "b": ("N", 4)}, ["y"])
    read = read_model(proto.SerializeToString())
    templates = Templates(read, lambda shapes: run_passes(read.bind(shapes)))
    for batch in (2, 5):
        assert templates.graph([(batch, 4), (batch, 4)]).types["y"].shape == (batch, 4)
    with pytest.raises(InputError, match="N = 2"):
        templates.graph([(2, 4), (3, 4)])


# -- files whose expressions grow ----------------------------------------------------------
def doubled_sum(count: int, op: str = "Add") -> Counted:
    """As many columns as a width, less six, that is doubled or squared again and again."""
    nodes = [node("Shape", ["x"], "s"), node("Gather", ["s", "three"], "w")]
    nodes += [node("Sub", ["w", "six"], "d0")]
    nodes += [node(op, [f"d{i}"] * 2, f"d{i + 1}") for i in range(count)]
    nodes += [node("Unsqueeze", [f"d{count}", "zero"], "u")]
    nodes += [node("Slice", ["x", "zero", "u", "axes"], "y")]
    held = {"three": np.array(3), "six": np.array(6), "zero": np.array([0])}
    held["axes"] = np.array([3])
    proto = model(nodes, {"x": (1, 3, "H", "W")}, ["y"], held)
    return Counted(read_model(proto.SerializeToString()))


def doubled_map(count: int) -> Counted:
    """A map that is put beside itself and pooled again and again."""
    pool = {"kernel_shape": [1, 2], "strides": [1, 2]}
    nodes = []
    for i in range(count):
        nodes.append(node("Concat", [f"x{i}" if i else "x"] * 2, f"c{i}", axis=3))
        nodes.append(node("MaxPool", [f"c{i}"], f"x{i + 1}", **pool))
    proto = model(nodes, {"x": (1, 3, "H", "W")}, [f"x{count}"], {})
    return Counted(read_model(proto.SerializeToString()))


def halved_and_doubled_map(count: int) -> Counted:
    """A map that is pooled and resized again and again."""
    pool = {"kernel_shape": [1, 2], "strides": [1, 2]}
    how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    nodes = []
    for i in range(count):
        nodes.append(node("MaxPool", [f"x{i}" if i else "x"], f"p{i}", **pool))
        nodes.append(node("Resize", [f"p{i}", "", "scales"], f"x{i + 1}", **how))
    held = {"scales": np.array([1, 1, 1, 2], np.float32)}
    proto = model(nodes, {"x": (1, 3, "H", "W")}, [f"x{count}"], held)
    return Counted(read_model(proto.SerializeToString()))


@pytest.mark.parametrize(
    ("network", "times"),
    [
        (lambda: doubled_sum(28), 1),
        (lambda: doubled_map(24), 1),
        (lambda: halved_and_doubled_map(60), 1),
        (lambda: doubled_sum(70), 4),  # int64 has no such sum: each shape is bound by itself
        (lambda: doubled_sum(70, "Mul"), 4),
    ],
)
def test_no_file_makes_large_expressions(network: Callable[[], Counted], times: int) -> None:
    counted = network()
    tracemalloc.start()
    try:
        counted.templates.graph([(1, 3, 8, 8)])
        counted.templates.graph([(1, 3, 8, 12)])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4e6
    assert counted.times == times


def test_beyond_the_bound_each_shape_is_bound_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "MOST_NODES", 100)
    network = halved_and_doubled_map(60)
    for width, times in ((8, 2), (12, 4)):
        assert network.check(1, 3, 8, width) == times


def test_what_costs_more_with_symbols_is_bound_by_itself_and_is_no_defect() -> None:
    read = read_model(small_cnn().SerializeToString())

    def make(shapes: Any) -> Any:
        if any(isinstance(extent, Symbol) for extent in shapes["x"]):
            raise SpentError("too much traffic")
        return run_passes(read.bind(shapes))

    templates = Templates(read, make)
    shape = tuple(n if isinstance(n, int) else 16 for n in read.inputs[0].shape or ())
    assert not templates.graph([shape]).open_axes
    (memo,) = templates.memos
    assert "too much traffic" in memo.refusals[0]


def test_shapes_whose_numbers_int64_has_not_are_bound_by_themselves() -> None:
    """A template of a small width must not compute what int64 computes otherwise."""
    for network in (doubled_sum(62), doubled_sum(6, "Mul")):
        assert network.check(1, 3, 8, 7) == 1
        assert network.check(1, 3, 8, 5000) == 3


def test_an_extent_that_is_no_integer_is_found_before_it_is_used(
    defects_are_warnings: pytest.LogCaptureFixture,
) -> None:
    """Whatever goes wrong with symbols, be it after binding, the shape is bound to numbers."""
    read = read_model(small_cnn().SerializeToString())
    asked = []

    def make(shapes: Any) -> Any:
        asked.append(shapes["x"])
        graph = run_passes(read.bind(shapes))
        symbolic = isinstance(shapes["x"][3], Symbol)
        width = shapes["x"][3] / 2 if symbolic else shapes["x"][3]
        types = {**graph.types, "x": TensorType((*shapes["x"][:3], width), FLOAT32)}
        return replace(graph, types=MappingProxyType(types))

    templates = Templates(read, make)
    for width in (32, 48):
        assert templates.graph([(2, 3, 32, width)]).types["x"].shape == (2, 3, 32, width)
    assert [isinstance(shape[3], Symbol) for shape in asked] == [True, False] * 2
    first, _ = defects_are_warnings.messages
    assert "a shape holds" in first

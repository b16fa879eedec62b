"""The ways to call a network, and what it says of its inputs and outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import leanconv as lc
from leanconv.types import FLOAT32
from support import guard_pages
from support.onnx_models import FLOAT, model, small_cnn

A, B = np.full((3, 4), 5, "f4"), np.full((3, 4), 2, "f4")


def network(nodes: list[tuple[str, str, str]], inputs: str, outputs: str) -> lc.Network:
    """A network of nodes (operation, inputs, output) on arrays (N, 4)."""
    made = [helper.make_node(op, names.split(), [output]) for op, names, output in nodes]
    shapes = dict.fromkeys(inputs.split(), ("N", 4))
    return lc.load(model(made, shapes, outputs.split()), threads=1)


@pytest.fixture(scope="module")
def difference() -> lc.Network:
    """y = a - b."""
    return network([("Sub", "a b", "y")], "a b", "y")


@pytest.fixture(scope="module")
def both() -> lc.Network:
    """s = a + b, d = a - b."""
    return network([("Add", "a b", "s"), ("Sub", "a b", "d")], "a b", "s d")


@pytest.fixture(scope="module")
def named() -> lc.Network:
    """y = max(images, 0)."""
    return network([("Relu", "images", "y")], "images", "y")


# -- calls -------------------------------------------------------------------------------------
def test_inputs_are_given_by_place_by_name_or_both(difference: lc.Network) -> None:
    for y in (
        difference(A, B),
        difference(a=A, b=B),
        difference(b=B, a=A),
        difference(A, b=B),
        difference.run({"a": A, "b": B})["y"],
    ):
        assert np.array_equal(y, A - B)


def test_an_input_of_a_name_that_methods_have_is_given_by_it() -> None:
    for name in ("self", "x", "more", "named", "inputs", "out"):
        net = network([("Relu", name, "y")], name, "y")
        assert np.array_equal(net(**{name: A}), A)


def test_a_name_that_is_no_identifier_is_given_in_a_dictionary() -> None:
    net = network([("Relu", "input.1", "y")], "input.1", "y")
    assert np.array_equal(net.run({"input.1": A})["y"], A)
    assert np.array_equal(net(A), A)
    with pytest.raises(lc.InputError, match="did you mean 'input.1'"):
        net(input_1=A)


WRONG_CALLS: list[tuple[Callable[[Any], object], str]] = [
    (lambda net: net(images=A), r"got inputs \['images'\]; expected \['a', 'b'\]$"),
    (lambda net: net(A), r"got inputs \['a'\]; expected \['a', 'b'\]"),
    (lambda net: net(A, B, A), "got 3 arrays; expected 2: a, b"),
    (lambda net: net(), "got 0 arrays; expected 2: a, b"),
    (lambda net: net(A, a=B), "input 'a' is given by its place and by its name"),
    (lambda net: net(A, B, a=B), "input 'a' is given by its place and by its name"),
    (lambda net: net({"a": A, "b": B}), "call net.run"),
    (lambda net: net(A, [1.0]), r"input 'b' is list; expected a NumPy array: give np.asarray\(x"),
    (lambda net: net(a=A, b=None), "input 'b' is NoneType; expected a NumPy array"),
]


@pytest.mark.parametrize(("call", "what"), WRONG_CALLS, ids=[what for _, what in WRONG_CALLS])
def test_wrong_calls(difference: lc.Network, call: Callable[[Any], object], what: str) -> None:
    with pytest.raises(lc.InputError, match=what):
        call(difference)


def test_an_unknown_name_is_answered_with_the_closest_one(named: lc.Network) -> None:
    assert np.array_equal(named(images=-A), 0 * A)
    for call in (lambda: named(image=A), lambda: named.run({"image": A})):
        with pytest.raises(lc.InputError, match=r"got inputs \['image'\]; .*did you mean 'images'"):
            call()
    with pytest.raises(lc.InputError, match="did you mean 'images'"):
        named.bind({"Images": (3, 4)})


def test_an_array_in_place_of_its_shape_is_not_printed_whole(named: lc.Network) -> None:
    with pytest.raises(lc.InputError, match=r"such as \(1, 3, 224, 224\) or x.shape") as raised:
        named.bind(np.ones((2, 3, 40, 50), np.float32))  # type: ignore[arg-type]
    assert len(str(raised.value)) < 200


def test_a_call_of_a_network_with_several_outputs_names_them(both: lc.Network) -> None:
    with pytest.raises(lc.InputError, match="outputs s, d; expected one; call net.run"):
        both(A, B)


# -- as onnxruntime's users write --------------------------------------------------------------
def test_output_names_first_give_a_list_in_their_order(both: lc.Network) -> None:
    feeds = {"a": A, "b": B}
    cases: list[tuple[list[np.ndarray], list[np.ndarray]]] = [
        (both.run(None, feeds), [A + B, A - B]),
        (both.run([], feeds), [A + B, A - B]),
        (both.run(["d"], feeds), [A - B]),
        (both.run(("d", "s"), feeds), [A - B, A + B]),
        (both.run(None, input_feed=feeds), [A + B, A - B]),
        (both.run(output_names=["d"], input_feed=feeds), [A - B]),
        (both.run(output_names=None, input_feed=feeds), [A + B, A - B]),
    ]
    for found, expected in cases:
        assert type(found) is list
        assert len(found) == len(expected)
        assert all(map(np.array_equal, found, expected))


def test_inputs_first_give_a_dictionary(both: lc.Network) -> None:
    for found in (both.run({"a": A, "b": B}), both.run(inputs={"b": B, "a": A})):
        assert list(found) == ["s", "d"]
        assert np.array_equal(found["d"], A - B)


WRONG_RUNS: list[tuple[Callable[[Any, Any], object], str]] = [
    (lambda net, feeds: net.run("d", feeds), r"output_names is 'd'; expected None .*\['s'\]"),
    (lambda net, feeds: net.run(feeds, ["d"]), "output_names is dict; .*, and the inputs after it"),
    (lambda net, feeds: net.run(5, feeds), "output_names is 5; expected None for all, or a list"),
    (lambda net, feeds: net.run(["D"], feeds), "output name 'D'; expected some of s, d"),
    (lambda net, feeds: net.run(["sum"], feeds), "'sum'; .*did you mean 's'"),
    (lambda net, feeds: net.run([A], feeds), "got the output name ndarray"),
    (lambda net, feeds: net.run([None], feeds), "got the output name None"),
    (lambda net, feeds: net.run(None, [A, B]), "inputs is list; expected a dictionary"),
    (lambda net, feeds: net.run(None, {"a": A}), r"got inputs \['a'\]; expected"),
    (lambda net, feeds: net.run(), "inputs is NoneType; expected a dictionary"),
    (lambda net, feeds: net.run(["d"]), "inputs is list; expected a dictionary"),
    (lambda net, feeds: net.run(output_names=["d"]), "inputs is NoneType; expected a dictionary"),
]


@pytest.mark.parametrize(("call", "what"), WRONG_RUNS, ids=[what for _, what in WRONG_RUNS])
def test_wrong_runs(both: lc.Network, call: Callable[[Any, Any], object], what: str) -> None:
    with pytest.raises(lc.InputError, match=what):
        call(both, {"a": A, "b": B})


# -- what the arrays may be --------------------------------------------------------------------
class Tensor:
    """What a tensor of torch looks like from outside."""

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return A


@pytest.mark.parametrize(
    ("x", "what"),
    [
        (A.tolist(), r"list; expected a NumPy array: give np.asarray\(x, 'float32'\)"),
        (Tensor(), r"Tensor; expected a NumPy array: give x.detach\(\).cpu\(\).numpy\(\)"),
        (memoryview(A), r"memoryview; .*give np.asarray\(x, 'float32'\)"),
        (np.ma.masked_array(A), r"MaskedArray; .*not a masked one: give x.filled\(0\)"),
        (A.astype("f2"), r"float16.*; expected float32.*\.astype\('float32'\)"),
        (A.astype("i1"), r"int8.*; expected float32.*\.astype\('float32'\)"),
        (A.astype(">f4"), r"expected float32.*\.astype\('float32'\)"),
        ({"images": A}, r"got a dictionary; expected arrays; call net.run"),
    ],
)
def test_what_is_no_array_of_the_dtype_is_told_how_to_become_one(
    named: lc.Network, x: Any, what: str
) -> None:
    with pytest.raises(lc.InputError, match=what):
        named(x)


def test_weights_that_are_masked_or_no_array_are_refused() -> None:
    x, w = np.ones((1, 2, 4, 4), "f4"), np.ones((3, 2, 3, 3), "f4")
    given: list[tuple[Any, str]] = [
        (np.ma.masked_array(w), r"w is MaskedArray; .*w\.filled"),
        (Tensor(), r"w is Tensor; .*w\.detach\(\)"),
        (w.astype(">f4"), r"w is >f4; .*convert it with .astype\('float32'\)"),
    ]
    for wrong, what in given:
        with pytest.raises(lc.InputError, match=what):
            lc.conv2d(x, wrong)


# -- what a network says -----------------------------------------------------------------------
def told(shape: tuple[int | str, ...] | None) -> onnx.ModelProto:
    """y = max(x, 0) on (N, 4), whose file says that y has some shape."""
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("N", 4)}, ["y"])
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info("y", FLOAT, shape))
    return proto


def test_outputs_are_described_like_inputs() -> None:
    net = lc.load(told(("N", 4)))
    for (port,), name in ((net.inputs, "x"), (net.outputs, "y")):
        assert (port.name, port.shape, port.dtype) == (name, ("N", 4), FLOAT32)
    assert lc.load(told(("N", 4)), dtype="float64").outputs[0].dtype == "float64"
    assert lc.load(told(None)).outputs[0].shape is None
    assert len(net.outputs) == 1


def test_where_input_shapes_are_fixed_outputs_are_those_of_the_plan() -> None:
    proto = told((7, "M", 9))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3
    net = lc.load(proto)
    assert net.outputs[0].shape == (3, 4)
    assert net(A).shape == (3, 4)


def test_a_damaged_statement_about_an_output_is_none() -> None:
    proto = told(("N", 4))
    proto.graph.output[0].type.Clear()
    assert lc.load(proto).outputs[0].shape is None
    rank = told(tuple(range(1, 200)))
    assert lc.load(rank).outputs[0].shape is None


def test_a_network_is_shown_in_one_line() -> None:
    assert repr(lc.load(told(("N", 4)))) == "<Network x[Nx4] -> y[Nx4], float32>"
    assert repr(lc.load(told(None))) == "<Network x[Nx4] -> y, float32>"


# -- what a call costs -------------------------------------------------------------------------
def calls_of(function: Callable[[], object]) -> list[str]:
    """The functions of Python that a warm call goes through, itself apart."""
    for _ in range(3):
        function()
    found: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        del argument
        if event == "call":
            found.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found[1:]


@pytest.mark.skipif(bool(guard_pages.side()), reason="copies to guarded memory are calls, too")
def test_a_warm_call_goes_through_few_functions() -> None:
    net = lc.load(small_cnn(), threads=1)
    x = np.ones((2, 3, 16, 16), "f4")
    shortest = ["__call__", "_single", "call", "__call__", "run", "run"]
    assert calls_of(lambda: net(x)) == shortest
    feeds = {"x": x}
    mapped = [name for name in calls_of(lambda: net.run(feeds)) if name != "<listcomp>"]
    assert mapped == ["run", "ordered", *shortest[1:]]


def test_a_function_of_the_package_is_looked_up_once() -> None:
    first = lc.conv2d
    assert vars(lc)["conv2d"] is first

"""Convolutions whose weights or bias are data, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import leanconv as lc
from leanconv.errors import ModelError
from support.control_flow import node
from support.onnx_models import Array, reference

R = np.random.default_rng(3)


def numbers(*shape: int) -> Array:
    return R.standard_normal(shape).astype("f4")


Case = tuple[dict[str, Array], dict[str, Any]]  # operands x, w, b by name; attributes


def network_of(op: str, cases: Sequence[Case], opened: bool = False) -> onnx.ModelProto:
    """A network of convolutions of inputs; `opened` leaves all extents open but of channels."""
    nodes, inputs, outputs = [], [], []
    for number, (arrays, attributes) in enumerate(cases):
        names = [f"{name}{number}" for name in arrays]
        for name, array in zip(names, arrays.values(), strict=True):
            shape = [
                f"{name}.{axis}" if opened and name[0] == "x" and axis != 1 else n
                for axis, n in enumerate(array.shape)
            ]
            inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        nodes.append(node(op, " ".join(names), f"y{number}", **attributes))
        outputs.append(helper.make_tensor_value_info(f"y{number}", TensorProto.FLOAT, None))
    graph = helper.make_graph(nodes, "data", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feed_of(cases: Sequence[Case]) -> dict[str, Array]:
    return {f"{name}{n}": a for n, (arrays, _) in enumerate(cases) for name, a in arrays.items()}


def agrees(proto: onnx.ModelProto, *feeds: dict[str, Array]) -> lc.Network:
    """Compare with ONNX Runtime's outputs; gives the network."""
    network = lc.load(proto, threads=1)
    for feed in feeds:
        found = network.run(feed)
        for name, expected in reference(proto, feed).items():
            assert found[name].shape == expected.shape, name
            np.testing.assert_allclose(found[name], expected, 1e-5, 2e-5, err_msg=name)
    return network


def random_case(op: str, seed: int) -> Case:
    """Operands and attributes that fit each other."""
    r = np.random.default_rng(seed)

    def some(low: int, high: int, count: int) -> list[int]:
        return r.integers(low, high + 1, count).tolist()  # type: ignore[no-any-return]

    spatial, group = int(r.integers(1, 4)), int(r.choice([1, 1, 2, 3]))
    own, outputs = group * int(r.integers(1, 4)), group * int(r.integers(1, 4))
    taps, dilations, strides = some(1, 4, spatial), some(1, 2, spatial), some(1, 3, spatial)
    pads = some(0, 2, 2 * spatial)
    reach = [(t - 1) * d + 1 for t, d in zip(taps, dilations, strict=True)]
    sizes = [n + extra for n, extra in zip(reach, some(0, 6, spatial), strict=True)]
    attributes = {"strides": strides, "dilations": dilations, "pads": pads, "group": group}
    if op == "Conv":
        shape = (outputs, own // group, *taps)
        if r.integers(4) == 0:
            del attributes["pads"]
            attributes["dilations"] = [1] * spatial
            attributes["auto_pad"] = str(r.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    else:
        shape = (own, outputs // group, *taps)
        attributes["output_padding"] = [int(r.integers(0, stride)) for stride in strides]
        sizes = [n + 4 for n in sizes]
    arrays = {"x": numbers(int(r.integers(1, 3)), own, *sizes), "w": numbers(*shape)}
    if r.integers(2):
        arrays["b"] = numbers(outputs)
    return arrays, attributes


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_random_convolutions(op: str, seed: int) -> None:
    cases = [random_case(op, 20 * seed + number) for number in range(14)]
    feed = feed_of(cases)
    agrees(network_of(op, cases), feed, {name: -array for name, array in feed.items()})


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_open_sizes(op: str) -> None:
    window = {"strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [1, 2]}
    cases: list[Case] = [
        ({"x": numbers(1, 4, 9, 11), "w": numbers(4, 2, 3, 2)}, {**window, "group": 2}),
        ({"x": numbers(2, 3, 17), "w": numbers(3, 3, 5), "b": numbers(3)}, {}),
    ]
    other = [
        ({**arrays, "x": numbers(3, *arrays["x"].shape[1:2], *more)}, attributes)
        for (arrays, attributes), more in zip(cases, [(14, 8), (33,)], strict=True)
    ]
    agrees(network_of(op, cases, opened=True), *map(feed_of, (cases, other, cases)))


def test_weights_that_the_network_computes() -> None:
    """By branches of its own, one kernel for each image; weights that only a run finds."""
    x, z = numbers(3, 4, 10, 10), numbers(3, 72)
    nodes = [
        node("Tanh", "z", "t"),
        node("Reshape", "t kernels", "w"),
        node("Reshape", "x joined", "xs"),
        node("Conv", "xs w", "ys", group=3, pads=[1, 1, 1, 1]),
        node("Relu", "ys", "r"),
        node("Reshape", "r apart", "y"),
        node("Compress", "z which", "some", axis=0),
        node("Reshape", "some kernels", "late"),
        node("Conv", "x late", "end"),
    ]
    held = {"kernels": [-1, 4, 3, 3], "joined": [1, 12, 10, 10], "apart": [3, 2, 10, 10]}
    constants = [numpy_helper.from_array(np.array(a), name) for name, a in held.items()]
    kinds = {"x": (x, TensorProto.FLOAT), "z": (z, TensorProto.FLOAT)}
    which = np.array([True, False, True])
    kinds["which"] = (which, TensorProto.BOOL)
    inputs = [helper.make_tensor_value_info(n, k, a.shape) for n, (a, k) in kinds.items()]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "end")]
    graph = helper.make_graph(nodes, "hyper", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 17)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    feed = {"x": x, "z": z, "which": which}
    agrees(proto, feed, {**feed, "which": ~which})


def test_constants_beside_data() -> None:
    """Bias alone as data, images alone as constants; numbers that are none stay where they are."""
    x, w, b = numbers(1, 3, 8, 8), numbers(4, 3, 3, 3), numbers(4)
    spoiled = x.copy()
    spoiled[0, 1, 3, 3], spoiled[0, 2, 6, 1] = np.inf, np.nan
    for op in ("Conv", "ConvTranspose"):
        weight = w if op == "Conv" else w.swapaxes(0, 1).copy()
        case = [({"x": x, "w": weight, "b": b}, {"pads": [1, 2, 0, 1]})]
        proto = network_of(op, case)
        agrees(proto, feed_of(case), {"x0": spoiled, "w0": weight, "b0": b})
        for held in ({"w0": weight}, {"x0": x}, {"w0": weight, "x0": x}):
            part = onnx.ModelProto()
            part.CopyFrom(proto)
            for name, array in held.items():
                part.graph.initializer.append(numpy_helper.from_array(array, name))
                del part.graph.input[[each.name for each in part.graph.input].index(name)]
            agrees(part, {n: a for n, a in feed_of(case).items() if n not in held})


def test_many_taps() -> None:
    case = [({"x": numbers(1, 4, 600), "w": numbers(2, 4, 513)}, {})]
    agrees(network_of("Conv", case), feed_of(case))


def test_what_is_refused() -> None:
    x = numbers(1, 4, 600)
    wrong = network_of("Conv", [({"x": x, "w": numbers(2, 3, 3)}, {})])
    with pytest.raises(ModelError, match="4 channels|3 channels"):
        lc.load(wrong)

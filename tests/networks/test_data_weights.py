"""Convolutions whose weights or bias are data, against onnxruntime."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import leanconv as lc
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import GPU_PASSES, run_passes
from support.interpret import interpret

Shape = tuple[int, ...]
Layer = tuple[Shape, Shape, dict[str, Any]]


def file_of(
    op: str,
    x: Shape,
    arrays: dict[str, np.ndarray],
    data: tuple[str, ...],
    open_axes: bool = False,
    kind: int = TensorProto.FLOAT,
    **attributes: Any,
) -> bytes:
    """A file of one node; those of its arrays that are no data are constants of it."""
    shown: list[str | int | None] = list(x)
    if open_axes:
        shown = ["N", x[1], *(f"s{i}" for i in range(len(x) - 2))]
    given = [helper.make_tensor_value_info("x", kind, shown)]
    given += [helper.make_tensor_value_info(n, kind, arrays[n].shape) for n in data]
    held = [numpy_helper.from_array(a, n) for n, a in arrays.items() if n not in data]
    node = helper.make_node(op, ["x", *arrays], ["y"], **attributes)
    result = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph([node], "g", given, [result], held)
    opset = [helper.make_opsetid("", 17)]
    made: bytes = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    return made


def expected(model: bytes, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """What onnxruntime answers."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    y: np.ndarray = session.run(None, inputs)[0]
    return y


def holds(
    op: str,
    x: Shape,
    w: Shape,
    bias: bool,
    data: tuple[str, ...],
    dtype: Any = np.float32,
    **a: Any,
) -> None:
    """Compare one convolution."""
    random = np.random.default_rng(len(w) + sum(w))
    channels = w[0] if op == "Conv" else w[1] * a.get("group", 1)
    arrays = {"w": random.standard_normal(w).astype(dtype)}
    if bias:
        arrays["b"] = random.standard_normal(channels).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = file_of(op, x, arrays, data, kind=kind, **a)
    inputs = {"x": random.standard_normal(x).astype(dtype)} | {n: arrays[n] for n in data}
    y, tolerance = lc.load(model).run(None, inputs)[0], 1e-4
    if dtype == np.float32:
        wanted = expected(model, inputs)
    else:  # onnxruntime has none of float64
        graph = read_model(model).bind({name: array.shape for name, array in inputs.items()})
        (wanted,), tolerance = interpret(graph, inputs).values(), 1e-12
    assert y.dtype == wanted.dtype
    np.testing.assert_allclose(y, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


LAYERS = [
    ((1, 64, 14, 14), (64, 64, 3, 3), {"pads": [1] * 4}),
    ((2, 32, 9, 11), (32, 1, 3, 3), {"pads": [1] * 4, "group": 32}),
    ((1, 20, 9, 8), (36, 5, 3, 2), {"pads": [1, 0, 2, 1], "group": 4, "strides": [2, 1]}),
    ((1, 7, 12, 5), (3, 7, 1, 1), {}),
    ((3, 5, 31), (6, 5, 9), {"pads": [4, 4], "dilations": [2]}),
    ((1, 4, 6, 7, 5), (8, 2, 2, 3, 1), {"group": 2, "pads": [1, 1, 0, 0, 1, 1]}),
    ((1, 1, 3, 3), (1, 1, 1, 1), {"pads": [5, 4, 6, 5]}),
    ((1, 24, 13, 13), (40, 24, 5, 5), {"pads": [2] * 4, "strides": [2, 2]}),
    ((1, 16, 5, 40), (48, 16, 1, 7), {"pads": [0, 3, 0, 3]}),
]
DATA = [(False, ("w",)), (True, ("w",)), (True, ("w", "b")), (True, ("b",))]


@pytest.mark.parametrize(("layer", "data"), [*itertools.product(LAYERS, DATA)])
def test_conv_of_data(layer: Layer, data: Any) -> None:
    (x, w, attributes), (bias, names) = layer, data
    holds("Conv", x, w, bias, names, **attributes)


@pytest.mark.parametrize("layer", LAYERS[:4])
def test_float64(layer: Layer) -> None:
    x, w, attributes = layer
    holds("Conv", x, w, True, ("w", "b"), np.float64, **attributes)


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("bias", [False, True])
def test_transposed(group: int, bias: bool) -> None:
    steps = {"strides": [2, 3], "pads": [1, 0, 1, 2], "output_padding": [1, 0]}
    data = ("w", "b") if bias else ("w",)
    holds("ConvTranspose", (2, 8, 5, 6), (8, 3, 3, 4), bias, data, group=group, **steps)


def test_other_weights_and_sizes_in_each_run() -> None:
    random = np.random.default_rng(0)
    arrays = {"w": np.zeros((24, 4, 3, 3), np.float32)}
    model = file_of("Conv", (1, 16, 8, 8), arrays, ("w",), True, group=4, pads=[1] * 4)
    net = lc.load(model)
    for size in ((1, 16, 8, 8), (3, 16, 17, 5), (1, 16, 40, 41), (2, 16, 1, 1)):
        inputs = {"x": random.standard_normal(size, np.float32)}
        for _ in range(2):
            inputs["w"] = random.standard_normal((24, 4, 3, 3), np.float32)
            y = net.run(None, inputs)[0]
            np.testing.assert_allclose(y, expected(model, inputs), rtol=0, atol=1e-4)


def test_threads_batches_and_limits_change_no_bit_of_a_reproducible_network() -> None:
    random = np.random.default_rng(1)
    arrays = {"w": random.standard_normal((32, 32, 3, 3)).astype(np.float32)}
    model = file_of("Conv", (1, 32, 12, 12), arrays, ("w",), True, pads=[1] * 4)
    x = random.standard_normal((3, 32, 12, 12)).astype(np.float32)
    runs = [
        lc.load(model, reproducible=True, threads=threads).run(None, {"x": part, **arrays})[0]
        for threads, part in ((1, x), (2, x), (2, x[:1]))
    ]
    assert runs[0].tobytes() == runs[1].tobytes()
    assert runs[0][:1].tobytes() == runs[2].tobytes()


def test_sums_of_codes_by_codes_that_are_data_are_exact() -> None:
    random = np.random.default_rng(2)
    given = [("x", (1, 16, 9, 9)), ("w", (16, 16, 3, 3))]
    infos = [helper.make_tensor_value_info(n, TensorProto.UINT8, s) for n, s in given]
    node = helper.make_node("ConvInteger", ["x", "w"], ["y"], pads=[1] * 4)
    result = helper.make_tensor_value_info("y", TensorProto.INT32, None)
    graph = helper.make_graph([node], "g", infos, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    inputs = {n: random.integers(0, 256, s, np.uint8) for n, s in given}
    text = model.SerializeToString()
    assert np.array_equal(lc.load(text).run(None, inputs)[0], expected(text, inputs))


TRANSPOSED: list[Layer] = [
    ((2, 8, 5, 6), (8, 3, 3, 4), {"strides": [2, 3], "pads": [1, 0, 1, 2], "group": 4}),
    ((1, 6, 4, 4), (6, 5, 3, 3), {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}),
    ((1, 4, 9, 8), (4, 3, 2, 2), {"pads": [3, 2, 4, 3], "dilations": [1, 2]}),
    ((1, 3, 7), (3, 4, 1), {"strides": [3]}),
    ((1, 2, 3, 4, 2), (2, 3, 2, 1, 3), {"strides": [2, 1, 1], "pads": [0, 0, 1] * 2}),
]


@pytest.mark.parametrize(("layer", "data"), [*itertools.product(TRANSPOSED, DATA[:3])])
def test_transposed_convolutions(layer: Layer, data: Any) -> None:
    (x, w, attributes), (bias, names) = layer, data
    holds("ConvTranspose", x, w, bias, names, **attributes)


@pytest.mark.parametrize(
    ("op", "layer"),
    [*(("Conv", layer) for layer in LAYERS), *(("ConvTranspose", layer) for layer in TRANSPOSED)],
)
def test_without_a_kernel_windows_become_columns(op: str, layer: Layer) -> None:
    x, w, attributes = layer
    random = np.random.default_rng(3)
    outputs = w[0] if op == "Conv" else w[1] * attributes.get("group", 1)
    arrays = {"w": random.standard_normal(w), "b": random.standard_normal(outputs)}
    kind = TensorProto.DOUBLE
    model = file_of(op, x, arrays, ("w", "b"), kind=kind, **attributes)
    inputs = {"x": random.standard_normal(x), **arrays}
    graph = read_model(model).bind({name: array.shape for name, array in inputs.items()})
    composed = run_passes(graph, GPU_PASSES)
    assert not {"DataConv", "DataConvTranspose"} & {node.op for node in composed.nodes}
    (made,), (wanted,) = (interpret(each, inputs).values() for each in (composed, graph))
    np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())

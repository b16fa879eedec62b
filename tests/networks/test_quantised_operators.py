"""ONNX's and ONNX Runtime's operators on codes, compiled, give ONNX Runtime's bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest

import leanconv as lc
from leanconv.errors import ModelError
from support.quantised_cases import CODES, GROUPS, OF_ONE, PRODUCT, Case, Draw, F
from support.quantised_models import microsoft, model, peer

OF_LSTM = ("x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz")
Refused = tuple[onnx.NodeProto, Mapping[str, np.ndarray], Mapping[str, Any]]


def joined(cases: Mapping[str, Case]) -> tuple[onnx.ModelProto, dict[str, np.ndarray], list[str]]:
    """All cases as one network, whose names begin with the cases' names."""
    nodes, inputs, constants, outputs = [], {}, {}, []
    for case, (proto, given, held) in cases.items():
        own = onnx.NodeProto()
        own.CopyFrom(proto)
        own.input[:] = [name and f"{case}.{name}" for name in proto.input]
        own.output[:] = [f"{case}.{name}" for name in proto.output]
        nodes.append(own)
        inputs.update((f"{case}.{name}", np.asarray(array)) for name, array in given.items())
        constants.update((f"{case}.{name}", array) for name, array in held.items())
        outputs += own.output
    return model(nodes, inputs, constants, outputs), inputs, outputs


@pytest.mark.parametrize(("make", "dtype"), GROUPS)
def test_bits(make: Callable[[Draw], dict[str, Case]], dtype: Any) -> None:
    made, inputs, outputs = joined(make(Draw(dtype)))
    found = lc.load(made.SerializeToString()).run(inputs)
    for name, expected in zip(outputs, peer(made, inputs), strict=True):
        assert found[name].dtype == expected.dtype, name
        np.testing.assert_array_equal(found[name], expected, name)


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_an_lstm_is_near_the_one_of_quantised_states(
    direction: str, columns: bool, dtype: Any
) -> None:
    """Its states are not quantised here: it is the more exact one."""
    d, size, hidden = Draw(dtype), 12, 8
    ways = 1 + (direction == "bidirectional")
    rows = (4 * hidden,) if columns else ()
    zero = (128 if dtype == np.uint8 else 0) + (0 if columns and dtype == np.int8 else 5)
    scales = {name: d.rng.uniform(0.002, 0.01, (ways, *rows)).astype(F) for name in ("ws", "rs")}
    zeros = {name: np.full((ways, *rows), zero, dtype) for name in ("wz", "rz")}
    bias = d.rng.standard_normal((ways, 8 * hidden)).astype(F)
    weights = {"w": d.codes(ways, size, 4 * hidden), "r": d.codes(ways, hidden, 4 * hidden)}
    outputs = ("y", "h", "c")
    proto = microsoft(
        "DynamicQuantizeLSTM", OF_LSTM, outputs, direction=direction, hidden_size=hidden
    )
    inputs = {"x": d.rng.standard_normal((5, 3, size)).astype(F)}
    made = model([proto], inputs, {**weights, "b": bias, **scales, **zeros}, outputs)
    found = lc.load(made.SerializeToString()).run(inputs)
    for name, expected in zip(outputs, peer(made, inputs), strict=True):
        far = np.linalg.norm(found[name] - expected) / np.linalg.norm(expected)
        assert far < 0.01


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("batch", [1, 3, 11])
def test_an_lstm_of_codes_is_that_of_their_floats(batch: int, columns: bool, dtype: Any) -> None:
    """ONNX Runtime's LSTM of the numbers that codes stand for, with all optional inputs."""
    d, size, hidden = Draw(dtype), 12, 20
    rows, shape = 4 * hidden, (2, 4 * hidden) if columns else (2,)
    held: dict[str, np.ndarray] = {"w": d.codes(2, size, rows), "r": d.codes(2, hidden, rows)}
    for name in ("w", "r"):
        held[f"{name}s"] = d.rng.uniform(0.002, 0.006, shape).astype(F)
        held[f"{name}z"] = d.codes(*shape) if name == "r" else np.zeros(shape, dtype)
    held["b"], held["p"] = (d.rng.standard_normal((2, n * hidden)).astype(F) for n in (8, 3))
    inputs = {"x": d.rng.standard_normal((5, batch, size)).astype(F)}
    inputs["lengths"] = d.rng.integers(1, 6, batch).astype(np.int32)
    inputs |= {name: d.rng.standard_normal((2, batch, hidden)).astype(F) for name in ("h0", "c0")}
    names, outputs = ("x", "w", "r", "b", "lengths", "h0", "c0", "p"), ("y", "h", "c")
    how = {"direction": "bidirectional", "hidden_size": hidden, "clip": 2.0}
    proto = microsoft("DynamicQuantizeLSTM", (*names, *OF_LSTM[8:]), outputs, **how)
    found = lc.load(model([proto], inputs, held, outputs).SerializeToString()).run(inputs)

    for name in ("w", "r"):
        zero, scale = (held.pop(name + end).reshape(2, 1, -1).astype(F) for end in ("z", "s"))
        held[name] = ((held[name].astype(F) - zero) * scale).transpose(0, 2, 1)
    nodes = [
        onnx.helper.make_node("DynamicQuantizeLinear", ["x"], ["codes", "xs", "xz"]),
        onnx.helper.make_node("DequantizeLinear", ["codes", "xs", "xz"], ["near"]),
        onnx.helper.make_node("LSTM", ["near", *names[1:]], outputs, **how),
    ]
    for name, expected in zip(
        outputs, peer(model(nodes, inputs, held, outputs), inputs), strict=True
    ):
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("axes", [None, (1,), (-1, 1)])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_means_of_codes(keepdims: int, axes: tuple[int, ...] | None, dtype: Any) -> None:
    """ONNX Runtime declares QLinearReduceMean and has no kernel of it: NumPy is the judge."""
    d = Draw(dtype)
    a, low, high = d.codes(2, 4, 3, 8), d.ends[0], d.ends[1] - 1
    steps = {"as": F(0.5), "az": dtype(7), "ys": F(0.125), "yz": dtype(9)}  # sums are exact
    more = {} if axes is None else {"axes": axes}
    proto = microsoft("QLinearReduceMean", OF_ONE, keepdims=keepdims, **more)
    found = lc.load(model([proto], {"a": a}, steps).SerializeToString()).run({"a": a})["y"]
    sums = (a.astype(np.float64) - 7).mean(axis=axes, keepdims=bool(keepdims))
    expected = np.clip(np.rint(sums * 4) + 9, low, high).astype(dtype)
    np.testing.assert_array_equal(found, expected)


def lstm(**changed: np.ndarray | None) -> Refused:
    """An LSTM of two columns of which some inputs are others, or absent."""
    held: dict[str, np.ndarray | None] = {"b": None, "w": np.zeros((1, 3, 8), np.int8)}
    held["r"] = np.zeros((1, 2, 8), np.int8)
    held |= {name: np.full(1, 0.1, F) for name in ("ws", "rs")}
    held |= {name: np.zeros(1, np.int8) for name in ("wz", "rz")} | changed
    names = [name if name == "x" or held.get(name) is not None else "" for name in OF_LSTM]
    given = {name: array for name, array in held.items() if array is not None}
    proto = microsoft("DynamicQuantizeLSTM", names, hidden_size=2)
    return proto, {"x": np.ones((4, 1, 3), F)}, given


def gemm(a: np.ndarray, w: np.ndarray, *names: str) -> Refused:
    """A QGemm of some inputs behind its six."""
    d = Draw(np.uint8)
    held = {**d.of("a", "y"), "w": w, "ws": F(0.1), "wz": np.int8(0)}
    return microsoft("QGemm", (*PRODUCT, *names)), {"a": a}, held


_SQUARE = np.ones((4, 4), np.uint8)
_REFUSED: dict[str, tuple[Refused, str]] = {
    "concat": (
        (
            microsoft("QLinearConcat", ("ys", "yz", "a", "as", "az", "as"), axis=0),
            {"a": _SQUARE},
            Draw(np.uint8).of("a", "y"),
        ),
        "got 6 inputs; expected two, and three for each tensor",
    ),
    "a-cube": (gemm(np.ones((2, 4, 4), np.uint8), _SQUARE.astype(np.int8)), "expected a matrix"),
    "zero-alone": (gemm(_SQUARE, _SQUARE.astype(np.int8), "", "", "yz"), "zero point but no scale"),
    "weights": (lstm(w=np.zeros((3, 8), np.int8)), r"\(directions, columns, rows\)"),
    "scales": (lstm(ws=np.ones(8, F)), "expected 1 numbers, or 8 for each"),
    "zeros": (lstm(rz=np.zeros((1, 3), np.int8)), "expected 1 numbers, or 8 for each"),
    "no-scale": (lstm(rs=None), "input 10 is absent; expected a scale"),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_what_makes_no_sense_is_refused(name: str) -> None:
    (proto, inputs, held), message = _REFUSED[name]
    data = model([proto], inputs, held).SerializeToString()
    with pytest.raises(ModelError, match=message):
        lc.load(data).run(inputs)


def test_a_file_that_is_one_lstm() -> None:
    """Its weights stay codes: as floats they took more work than a file of its size may ask for."""
    weights = {name: np.ones((1, 512, 2048), np.int8) for name in ("w", "r")}
    held = {**weights, "ws": np.full(1, F(1e-4)), "rs": np.full(1, F(1e-4))}
    proto = microsoft("DynamicQuantizeLSTM", [n if n in held or n == "x" else "" for n in OF_LSTM])
    proto.attribute.append(onnx.helper.make_attribute("hidden_size", 512))
    inputs = {"x": np.ones((2, 1, 512), F)}
    network = lc.load(model([proto], inputs, held).SerializeToString())
    assert network.plan.weight_bytes < 2.2 * weights["w"].nbytes
    y = network.run(inputs)["y"]
    assert np.allclose(y, y[..., :1])


def test_an_lstm_without_zero_points_has_those_of_0() -> None:
    d = Draw(np.int8)
    weights = {"w": d.codes(1, 3, 8), "r": d.codes(1, 2, 8)}
    inputs = {"x": d.rng.standard_normal((4, 1, 3)).astype(F)}
    found = []
    for zeros in ({}, {"wz": None, "rz": None}):
        proto, _, held = lstm(**weights, **zeros)
        found.append(lc.load(model([proto], inputs, held).SerializeToString()).run(inputs)["y"])
    np.testing.assert_array_equal(*found)

"""Networks with an end that leanconv lacks: one part here, the other in the real onnxruntime."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as real
import pytest
from onnx import TensorProto, helper, numpy_helper

import leanconv.onnxruntime as ours
from leanconv.onnxruntime import exceptions, session, split
from leanconv.onnxruntime.engines import Native, Other
from leanconv.onnxruntime.split import Split
from support.hostile import node

R = np.random.default_rng(3)
X = R.standard_normal((2, 3, 9, 11)).astype("f4")
MS = "com.microsoft"


def lacks(inputs: str, output: str) -> onnx.NodeProto:
    """An operator that leanconv lacks: the bias has one number for each column."""
    return helper.make_node("BiasGelu", [*inputs.split(), "columns"], [output], domain=MS)


def network(
    nodes: Sequence[onnx.NodeProto], outputs: str, shape: Sequence[Any] = X.shape, **held: Any
) -> bytes:
    constants = {
        "w": R.standard_normal((3, 3, 3, 3)).astype("f4") / 5,
        "columns": np.linspace(-1, 1, 11, dtype="f4"),
        **{name: np.asarray(array) for name, array in held.items()},
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_value_info(name, onnx.TypeProto()) for name in outputs.split()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return onnx.shape_inference.infer_shapes(model).SerializeToString()


def conv(source: str, output: str) -> onnx.NodeProto:
    return node("Conv", f"{source} w", output, pads=[1] * 4)


def held_if(captured: str, output: str) -> onnx.NodeProto:
    """A node whose graphs read a value from outside, under an operator that leanconv lacks."""

    def branch(op: str) -> onnx.GraphProto:
        made = helper.make_node(op, [captured], ["inner"])
        return helper.make_graph(
            [made], op, [], [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)]
        )

    return helper.make_node(
        "If", ["condition"], [output], then_branch=branch("Relu"), else_branch=branch("Neg")
    )


SUMMED = [
    node("ReduceSum", "e", "sum", keepdims=0),
    node("Greater", "sum zero", "condition"),
    held_if("b", "y"),
]
CASES: dict[str, tuple[list[onnx.NodeProto], str, bool]] = {
    "last": ([conv("x", "a"), node("Relu", "a", "b"), lacks("b", "y")], "y", True),
    "first": ([lacks("x", "a"), conv("a", "b"), node("Relu", "b", "y")], "y", False),
    "outputs on both sides": (
        [conv("x", "a"), node("Relu", "a", "y"), lacks("y", "z"), node("Neg", "a", "v")],
        "z y v",
        True,
    ),
    "between": (
        [conv("x", "a"), lacks("a", "b"), conv("b", "c"), conv("c", "d"), node("Neg", "d", "y")],
        "y",
        False,
    ),
    "beside": ([lacks("x", "a"), conv("x", "b"), node("Add", "a b", "y")], "y", True),
    "constants on both sides": (
        [
            node("Sqrt", "four", "two"),
            conv("x", "a"),
            node("Mul", "a two", "b"),
            lacks("b", "c"),
            node("Mul", "c two", "y"),
        ],
        "y",
        True,
    ),
    "integers cross": (
        [
            conv("x", "a"),
            node("Shape", "a", "s"),
            node("ArgMax", "a", "i", axis=1),
            lacks("a", "b"),
            node("Reshape", "b s", "c"),
            node("Cast", "i", "f", to=1),
            node("Add", "c f", "y"),
        ],
        "y",
        True,
    ),
    "captured": ([conv("x", "b"), lacks("b", "e"), *SUMMED], "y", True),
}


def made(data: bytes, caplog: pytest.LogCaptureFixture) -> ours.InferenceSession:
    with caplog.at_level(logging.WARNING, "leanconv"):
        return ours.InferenceSession(data)


@pytest.mark.parametrize("shape", [X.shape, ("n", 3, "h", 11), (None, 3, None, None)])
@pytest.mark.parametrize("name", CASES)
def test_one_part_here_the_other_there(
    name: str, shape: Sequence[Any], caplog: pytest.LogCaptureFixture
) -> None:
    nodes, outputs, first = CASES[name]
    held = {"four": np.float32(4), "zero": np.float32(0)}
    data = network(nodes, outputs, shape, **held)
    found = made(data, caplog)
    engine = found._engine
    assert isinstance(engine, Split)
    assert isinstance(engine._first, Native if first else Other)
    assert found.network is not None
    expected = real.InferenceSession(data)
    for x in (X, X, X[:1] if shape != X.shape else X):
        pairs = zip(found.run(None, {"x": x}), expected.run(None, {"x": x}), strict=True)
        for mine, theirs in pairs:
            assert mine.dtype == theirs.dtype
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    (message,) = caplog.messages
    count = len(nodes)
    assert "onnxruntime computes the " in message
    assert f" of {count} operators, for BiasGelu, leanconv the others: node 'BiasGelu_" in message
    assert [each.name for each in found.get_outputs()] == outputs.split()
    (last, *_) = reversed(found.run([outputs.split()[-1]], {"x": X}))
    np.testing.assert_allclose(last, expected.run(None, {"x": X})[-1], rtol=1e-4, atol=1e-5)


def test_what_does_not_pay_runs_there_whole(caplog: pytest.LogCaptureFixture) -> None:
    for nodes in (
        [node("Relu", "x", "a"), lacks("a", "y")],  # no convolution
        [conv("x", "a"), lacks("a", "b"), conv("b", "c"), lacks("c", "d"), conv("d", "y")],
    ):
        caplog.clear()
        found = made(network(nodes, "y"), caplog)
        assert isinstance(found._engine, Other)
        assert caplog.messages[0].startswith("onnxruntime computes this network: ")


def test_without_onnxruntime_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (split, session):
        if hasattr(module, "real"):
            monkeypatch.setattr(module, "real", lambda: None)
    monkeypatch.setattr("leanconv.onnxruntime.engines.real", lambda: None)
    with pytest.raises(exceptions.NotImplemented, match="BiasGelu"):
        ours.InferenceSession(network([conv("x", "a"), lacks("a", "y")], "y"))


def test_an_operator_that_a_shape_makes_unsupported(caplog: pytest.LogCaptureFixture) -> None:
    """Strides split a transposed convolution into too many phases, where it has so many outputs."""
    step = 64
    nodes = [
        conv("x", "a"),
        node("Relu", "a", "b"),
        node("Cast", "b", "half", to=TensorProto.FLOAT16),  # in float32 there is another way
        node("ConvTranspose", "half v", "z", strides=[step, step]),
        node("Cast", "z", "y", to=TensorProto.FLOAT),
    ]
    data = network(nodes, "y", ("n", 3, "h", "w"), v=np.ones((3, 1, 1, 1), "f2"))
    found = made(data, caplog)
    assert isinstance(found._engine, Native)
    with caplog.at_level(logging.WARNING, "leanconv"):
        (y,) = found.run(None, {"x": X})
    expected = real.InferenceSession(data).run(None, {"x": X})[0]
    np.testing.assert_allclose(y, expected, rtol=2e-3, atol=1e-3)
    assert "ConvTranspose" in caplog.messages[-1]


def test_damaged_files_are_refused_as_before() -> None:
    data = network([conv("x", "a"), lacks("a", "y")], "y")
    for cut in range(0, len(data), 37):
        with pytest.raises(exceptions.OnnxRuntimeError):
            ours.InferenceSession(data[:cut])

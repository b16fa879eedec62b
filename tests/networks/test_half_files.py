"""Files in float16, stored so and computed in float32, against ONNX Runtime and against float64."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import leanconv as lc
import leanconv.onnxruntime as drop_in
from leanconv.errors import BudgetError, InputError
from support.control_flow import node
from support.half_models import in_half
from support.onnx_models import Array, model, reference, small_cnn

R = np.random.default_rng(0)
ROUNDOFF = 2.0**-11
HALF = TensorProto.FLOAT16


def apart(a: Array, b: Array) -> float:
    """The largest difference, relative to the largest number."""
    wide = [each.astype("f8") for each in (a, b)]
    return float(np.abs(wide[0] - wide[1]).max() / np.abs(wide[1]).max())


@pytest.mark.parametrize("keep_ends", [False, True])
def test_a_network_in_half_precision(keep_ends: bool) -> None:
    proto = in_half(small_cnn(), keep_ends)
    net, double = lc.load(proto, threads=1), lc.load(proto, dtype="float64", threads=1)
    kind = "float32" if keep_ends else "float16"
    assert (net.inputs[0].dtype, net.outputs[0].dtype) == (kind, kind)
    session = drop_in.InferenceSession(proto.SerializeToString())
    for shape in ((1, 3, 32, 32), (2, 3, 19, 40)):
        x = R.standard_normal(shape).astype(kind)
        y = net(x)
        assert y.dtype == kind
        assert apart(y, reference(proto, {"x": x})["y"]) < 4 * ROUNDOFF
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], y)
        exact = double(x.astype("f8") if keep_ends else x)
        assert apart(y, exact) < 8 * ROUNDOFF
    assert ROUNDOFF <= net.plan.predicted_error < 20 * ROUNDOFF
    if not keep_ends:
        with pytest.raises(InputError, match=r"expected float16.*\.astype\(.float16.\)"):
            net(x.astype("f4"))


MOVING: dict[str, tuple[Array | None, dict[str, int]]] = {
    "Trilu": (None, {}),
    "ReverseSequence": (np.array([5, 3, 6, 1, 2, 6, 4, 5]), {"batch_axis": 1, "time_axis": 0}),
    "CenterCropPad": (np.array([4, 10]), {}),
    "Compress": (np.array([True, False, True, True, False, True]), {"axis": 0}),
}


@pytest.mark.parametrize("exported", ["float16", "float32"])
@pytest.mark.parametrize("op", MOVING)
def test_what_moves_halves_keeps_their_bits(op: str, exported: str) -> None:
    second, given = MOVING[op]
    nodes = [helper.make_node(op, ["x", "c"][: 1 + (second is not None)], ["m"], **given)]
    to = HALF if exported == "float16" else TensorProto.FLOAT
    nodes += [helper.make_node("Cast", ["m"], ["f"], to=to), helper.make_node("Neg", ["f"], ["y"])]
    held = {} if second is None else {"c": second}
    proto = model(nodes, {"x": (6, 8)}, ["y"], held, opset=18, elem_type=HALF)
    proto.graph.output[0].type.tensor_type.elem_type = to
    x = R.standard_normal((6, 8)).astype("f2")
    y = lc.load(proto)(x)
    assert y.dtype == exported
    np.testing.assert_array_equal(y, reference(proto, {"x": x})["y"])


def test_errors_below_those_of_half_precision_are_refused() -> None:
    proto = in_half(small_cnn(batch=1))
    for axis, extent in enumerate((1, 3, 32, 32)):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = extent
    with pytest.raises(BudgetError, match="max_error"):
        lc.load(proto, max_error=1e-5)


def test_casts_to_half_precision_round() -> None:
    x = R.standard_normal(64).astype("f4")
    nodes = [node("Cast", "x", "h", to=HALF), node("Exp", "h", "e"), node("Log", "e", "l")]
    nodes += [node("Cast", "h", "back", to=TensorProto.FLOAT), node("Where", "p l l", "y")]
    proto = model(nodes, {"x": (64,)}, ["y", "back"], {"p": np.array(True)})
    proto.graph.output[0].type.tensor_type.elem_type = HALF
    found = lc.load(proto, threads=1).run({"x": x})
    np.testing.assert_array_equal(found["back"], x.astype("f2").astype("f4"))
    assert found["y"].dtype == np.float16
    np.testing.assert_array_equal(found["y"], x.astype("f2"))


def test_what_is_late_is_given_in_half_precision() -> None:
    nodes = [node("Relu", "x", "r"), node("NonZero", "r", "n"), node("Compress", "r c", "y")]
    proto = model(nodes, {"x": (2, 3)}, ["y", "n"], {"c": np.array([False, True, True])})
    proto.graph.input[0].type.tensor_type.elem_type = HALF
    proto.graph.output[0].type.tensor_type.elem_type = HALF
    proto.graph.output[1].type.tensor_type.elem_type = TensorProto.INT64
    x = R.standard_normal((2, 3)).astype("f2")
    network = lc.load(proto, threads=1)
    assert [each.dtype for each in network.outputs] == ["float16", "int64"]
    expected = reference(proto, {"x": x})
    for name, array in network.run({"x": x}).items():
        np.testing.assert_array_equal(array, expected[name])
        assert array.dtype == expected[name].dtype


def test_weights_in_bfloat16() -> None:
    numbers = R.standard_normal((3, 4)).astype("f4")
    tensor = helper.make_tensor("w", TensorProto.BFLOAT16, (3, 4), numbers.reshape(-1))
    nodes = [node("Cast", "w", "v", to=TensorProto.FLOAT), node("MatMul", "x v", "y")]
    proto = model(nodes, {"x": (2, 3)}, ["y"])
    proto.graph.initializer.append(tensor)
    x = R.standard_normal((2, 3)).astype("f4")
    np.testing.assert_allclose(lc.load(proto)(x), reference(proto, {"x": x})["y"], 1e-5, 1e-6)

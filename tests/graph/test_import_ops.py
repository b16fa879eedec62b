"""Every operation that is imported, in every form its opsets give it, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from leanconv.graph.convert import (
    FILE_RULES,
    LAST_OPSET,
    indexing,
    quantised,
    quantised_microsoft,
    rearranging,
    sampling,
    selection,
)
from support import imported_cases
from support.decomposed_cases import TESTED
from support.folded_cases import FOLDS
from support.import_cases import Cases, Numbers
from support.onnx_models import Const, agree, floats, imported, ints, model, single

RANDOM = Numbers(7)
normal, positive = RANDOM.normal, RANDOM.positive
IMAGE = normal(2, 6, 9, 7)
CASES = Cases()
case = CASES.add


for opset in (7, 11, 22):
    case("plain", (opset,), "Conv", IMAGE, Const(normal(4, 6, 3, 3)))
case("bias", (11,), "Conv", IMAGE, Const(normal(4, 6, 3, 2)), Const(normal(4)), pads=[1, 0, 2, 1])
case(
    "all",
    (11, 22),
    "Conv",
    IMAGE,
    Const(normal(4, 3, 3, 2)),
    Const(normal(4)),
    group=2,
    strides=[2, 1],
    dilations=[1, 3],
    pads=[0, 2, 1, 0],
    kernel_shape=[3, 2],
)
case("depthwise", (11,), "Conv", IMAGE, Const(normal(12, 1, 3, 3)), group=6, pads=[1, 1, 1, 1])
case("1d", (11,), "Conv", normal(2, 3, 11), Const(normal(5, 3, 4)), strides=[3], pads=[2, 1])
case("3d", (11,), "Conv", normal(1, 2, 4, 5, 6), Const(normal(3, 2, 2, 3, 1)), strides=[1, 2, 2])
for auto in ("SAME_UPPER", "SAME_LOWER", "VALID"):
    case(auto, (7, 11), "Conv", IMAGE, Const(normal(4, 6, 4, 3)), auto_pad=auto, strides=[2, 3])
case("plain", (7, 11, 22), "ConvTranspose", IMAGE, Const(normal(6, 2, 3, 3)))
case(
    "all",
    (11,),
    "ConvTranspose",
    IMAGE,
    Const(normal(6, 2, 3, 2)),
    Const(normal(4)),
    group=2,
    strides=[2, 3],
    dilations=[2, 1],
    pads=[1, 0, 2, 1],
    output_padding=[1, 2],
)
case(
    "shape",
    (11,),
    "ConvTranspose",
    IMAGE,
    Const(normal(6, 2, 3, 3)),
    strides=[2, 2],
    output_shape=[18, 13],
)
case(
    "shape beyond the kernel's reach",
    (11, 22),
    "ConvTranspose",
    IMAGE,
    Const(normal(6, 2, 3, 2)),
    Const(normal(2)),
    strides=[3, 2],
    output_shape=[29, 15],
)
case("1d", (11,), "ConvTranspose", normal(1, 3, 5), Const(normal(3, 2, 4)), strides=[2])
for auto in ("SAME_UPPER", "SAME_LOWER"):
    case(
        auto,
        (11,),
        "ConvTranspose",
        IMAGE,
        Const(normal(6, 2, 4, 3)),
        auto_pad=auto,
        strides=[2, 2],
    )

for op in ("MaxPool", "AveragePool"):
    case("plain", (7, 8, 10, 12, 22), op, IMAGE, kernel_shape=[3, 2])
    case("stride", (7, 11), op, IMAGE, kernel_shape=[3, 2], strides=[2, 3], pads=[1, 0, 2, 1])
    case("ceil", (10, 19, 22), op, IMAGE, kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1)
    case(
        "ceil-pads",
        (11, 19, 22),
        op,
        IMAGE,
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        ceil_mode=1,
    )
    small = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}
    case("ceil-smaller", (10, 19, 22), op, normal(1, 2, 2, 2), **small)
    case("ceil-padded", (19, 22), op, normal(1, 2, 2, 1), **small, pads=[0, 1, 0, 0])
    case(
        "ceil-far", (19,), op, normal(1, 2, 1, 2), kernel_shape=[5, 4], strides=[5, 3], ceil_mode=1
    )
    case("1d", (11,), op, normal(1, 2, 10), kernel_shape=[3], strides=[2], pads=[1, 1])
    case("3d", (11,), op, normal(1, 2, 5, 6, 4), kernel_shape=[2, 3, 2], strides=[1, 2, 1])
    for auto in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        case(auto, (7, 11), op, IMAGE, kernel_shape=[3, 2], strides=[2, 2], auto_pad=auto)
case("dilated", (10, 12, 22), "MaxPool", IMAGE, kernel_shape=[3, 2], dilations=[2, 3])
case(
    "dilated",
    (19, 22),
    "AveragePool",
    IMAGE,
    kernel_shape=[3, 2],
    dilations=[2, 3],
    pads=[1, 1, 1, 1],
)
case(
    "include",
    (7, 11, 19),
    "AveragePool",
    IMAGE,
    kernel_shape=[3, 2],
    strides=[2, 2],
    pads=[1, 1, 2, 0],
    count_include_pad=1,
)
case(
    "include-ceil",
    (19, 22),
    "AveragePool",
    IMAGE,
    kernel_shape=[3, 3],
    strides=[2, 2],
    pads=[1, 1, 1, 1],
    count_include_pad=1,
    ceil_mode=1,
)
case("plain", (7, 22), "GlobalAveragePool", IMAGE)
case("plain", (7, 22), "GlobalMaxPool", IMAGE)

for op in ("Relu", "Sigmoid", "Tanh", "Exp", "Neg", "Abs", "Softplus"):
    case("plain", (7, 13, 14), op, 3 * IMAGE)
for op in ("Sqrt", "Log", "Reciprocal"):
    case("plain", (7, 13), op, positive(3, 5))
case("plain", (9, 13), "Erf", 2 * IMAGE)
case("plain", (14, 22), "HardSwish", 4 * IMAGE)
case("plain", (7, 16), "LeakyRelu", IMAGE)
case("alpha", (7, 16), "LeakyRelu", IMAGE, alpha=0.3)
case("plain", (7, 22), "HardSigmoid", 4 * IMAGE)
case("alpha", (7, 22), "HardSigmoid", 4 * IMAGE, alpha=0.3, beta=0.4)
case("plain", (7, 22), "Elu", IMAGE)
case("alpha", (7,), "Elu", IMAGE, alpha=0.7)
for alpha in (-2.0, -0.5, 0.3, 1.0):
    case(f"alpha {alpha}", (12,), "Celu", 2 * IMAGE, alpha=alpha)
for number in (-2.0, 0.0, 3.0):
    case(f"alpha {number}", (7,), "LeakyRelu", IMAGE, alpha=number)
    case(f"odd alpha {number}", (7,), "Elu", IMAGE, alpha=number)
    case(f"alpha {number}", (7,), "HardSigmoid", IMAGE, alpha=number, beta=-number)
    case(f"alpha {number}", (7,), "Selu", IMAGE, alpha=number, gamma=-number)
    case(f"min {number}", (13,), "Clip", IMAGE, floats(number), floats(0.5))
case("plain", (20, 22), "Gelu", 2 * IMAGE)
case("tanh", (20, 22), "Gelu", 2 * IMAGE, approximate="tanh")
case("attributes", (7, 10), "Clip", 4 * IMAGE, min=0.0, max=6.0)
case("lower", (7, 10), "Clip", IMAGE, min=-0.5)
case("inputs", (11, 12, 13), "Clip", 4 * IMAGE, Const(np.float32(0)), Const(np.float32(6)))
case("upper", (11, 13), "Clip", IMAGE, None, Const(np.float32(0.5)))
case("open", (11, 13), "Clip", IMAGE)
for shape in ((6, 1, 1), (1,), (6, 9, 7)):
    case(f"{len(shape)}d", (7, 9, 16), "PRelu", IMAGE, Const(normal(*shape)))
for op in ("Add", "Sub", "Mul", "Div"):
    case("same", (7, 13, 14), op, IMAGE, normal(2, 6, 9, 7))
    case("channel", (7, 14), op, IMAGE, Const(positive(6, 1, 1)))
    case("left", (7, 14), op, Const(normal(1, 6, 9, 1)), positive(2, 1, 9, 7))
    case("wider", (7, 14), op, positive(9, 1), normal(3, 1, 1, 5))
case("plain", (7, 12, 15), "Pow", positive(3, 4), Const(np.float32(2.5)))
case("integer", (12, 15), "Pow", IMAGE, Const(np.int64(3)))
for op, opsets in (("Sum", (7, 8, 13)), ("Min", (7, 8, 13)), ("Max", (7, 8, 13))):
    case("three", opsets, op, normal(3, 4), normal(3, 4), normal(3, 4))
    case("broadcast", (8, 13), op, normal(3, 1), normal(4), Const(normal(2, 1, 1)))
    case("one", opsets, op, normal(3, 4))

for op in ("Softmax", "LogSoftmax"):
    case("default", (7, 11, 13), op, normal(3, 4, 5))
    for axis in (0, 1, 2):
        case(f"axis{axis}", (7, 11, 13), op, normal(3, 4, 5), axis=axis)
    case("negative", (11, 13), op, normal(3, 4, 5), axis=-2)
case("plain", (7, 9, 14, 15), "BatchNormalization", IMAGE, *(Const(positive(6)) for _ in range(4)))
case(
    "epsilon",
    (9, 15),
    "BatchNormalization",
    IMAGE,
    *(Const(positive(6)) for _ in range(4)),
    epsilon=0.1,
    momentum=0.5,
)
for op in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum"):
    last = 12 if op == "ReduceSum" else 17
    case("axes", (7, 11, last), op, IMAGE, axes=[2, 3])
    case("squeezed", (11, last), op, IMAGE, axes=[-1, 1], keepdims=0)
    case("all", (7, last, 18), op, IMAGE)
    case("input", (18, 20), op, IMAGE, ints(2, -1), keepdims=0)
    case("noop", (18,), op, IMAGE, noop_with_empty_axes=1)
case("input", (13,), "ReduceSum", IMAGE, ints(1, 2))
case("plain", (7, 9, 11, 13), "Gemm", normal(3, 4), Const(normal(4, 5)), Const(normal(5)))
case(
    "all",
    (7, 11, 13),
    "Gemm",
    normal(4, 3),
    Const(normal(5, 4)),
    Const(normal(3, 1)),
    transA=1,
    transB=1,
    alpha=0.5,
    beta=2.0,
)
case("no-bias", (11, 13), "Gemm", normal(3, 4), normal(4, 5))
for a, b in (((3, 4), (4, 5)), ((2, 1, 3, 4), (6, 4, 5)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,))):
    case(f"{len(a)}by{len(b)}", (7, 9, 13), "MatMul", normal(*a), normal(*b))
case("plain", (7, 13), "LRN", positive(1, 7, 3, 3), size=3)
case("wide", (13,), "LRN", positive(1, 3, 3, 3), size=9, alpha=0.5)

case("default", (7, 9, 11, 13, 21), "Flatten", IMAGE)
case("zero", (7, 13), "Flatten", IMAGE, axis=0)
case("last", (7, 13), "Flatten", IMAGE, axis=4)
case("negative", (11, 21), "Flatten", IMAGE, axis=-1)
case("copy", (7, 13, 14, 19), "Reshape", IMAGE, ints(0, -1, 7))
case("full", (14,), "Reshape", IMAGE, ints(9, 2, 6, 7), allowzero=1)
case("default", (7, 13, 21), "Transpose", IMAGE)
case("perm", (7, 13), "Transpose", IMAGE, perm=[0, 2, 3, 1])
case("three", (7, 11, 13), "Concat", normal(2, 3), normal(2, 1), Const(normal(2, 4)), axis=1)
case("negative", (11, 13), "Concat", normal(2, 3, 4), normal(2, 3, 1), axis=-1)
case("attribute", (7, 12), "Squeeze", normal(1, 3, 1, 2), axes=[0, 2])
case("negative", (11, 12), "Squeeze", normal(1, 3, 1, 2), axes=[-2])
case("input", (13, 21), "Squeeze", normal(1, 3, 1, 2), ints(0, -2))
case("all", (7, 13), "Squeeze", normal(1, 3, 1, 2))
case("attribute", (7, 12), "Unsqueeze", normal(3, 2), axes=[0, 2])
case("input", (13, 21), "Unsqueeze", normal(3, 2), ints(-1, 0))
case("plain", (8, 13), "Expand", normal(3, 1), ints(2, 1, 6))
case("keeps", (13,), "Expand", normal(3, 4), ints(3, 1))
case("attributes", (7, 9), "Slice", IMAGE, starts=[1, -5], ends=[100, -1], axes=[1, 2])
case("no-axes", (7,), "Slice", IMAGE, starts=[0, 2], ends=[1, 5])
case("inputs", (10, 11, 13), "Slice", IMAGE, ints(1, -5), ints(100, -1), ints(1, 2))
case("steps", (10, 13), "Slice", IMAGE, ints(0, 8), ints(6, 1), ints(1, 2), ints(2, -3))
case("reverse", (10, 13), "Slice", IMAGE, ints(-1), ints(-(2**63)), ints(3), ints(-1))
case("far", (13,), "Slice", IMAGE, ints(-(2**62)), ints(2**63 - 1), ints(-1), ints(3))
case("constant", (11,), "Pad", IMAGE, ints(0, 0, 1, 2, 0, 0, 3, 0), Const(np.float32(1.5)))
case("attributes", (7, 10), "Pad", IMAGE, pads=[0, 0, 1, 2, 0, 0, 3, 0], value=0.5)
for mode in ("reflect", "edge"):
    case(mode, (7, 10), "Pad", IMAGE, pads=[0, 0, 1, 2, 0, 0, 3, 0], mode=mode)
    case(mode, (11, 13, 19), "Pad", IMAGE, ints(0, 0, 1, 2, 0, 0, 3, 0), mode=mode)
case("negative", (7, 10), "Pad", IMAGE, pads=[0, 0, -1, 2, 0, -1, 3, -2])
case("axes", (18, 21), "Pad", IMAGE, ints(1, 2, 3, 0), None, ints(-1, 1))
case("wrap", (19, 25), "Pad", IMAGE, ints(1, 0, 1, 2, 0, 3, 3, 1), mode="wrap")
case("wrapagain", (19,), "Pad", IMAGE, ints(0, 0, 0, 20, 0, 0, 13, 0), mode="wrap")
case("wrapcut", (19,), "Pad", IMAGE, ints(0, 0, -1, 2, 0, -1, 3, -2), mode="wrap")
for places, axis in (
    ([1, 0, 2], 1),
    ([2, 2, 0, -1], -1),
    ([[0, 0], [3, 1]], 2),
    ([0, 1, 3, 2, 1, 0, 0], 3),
    ([[[0]], [[0]]], 0),
    ([3, 3, 3], 2),
):
    case(f"any{places}", (7, 13), "Gather", IMAGE, Const(np.array(places)), axis=axis)
    case(f"int32{places}", (11,), "Gather", IMAGE, Const(np.array(places, np.int32)), axis=axis)
case("scalar", (7, 11, 13), "Gather", IMAGE, Const(np.int64(3)), axis=1)
case("range", (7, 13), "Gather", IMAGE, ints(1, 2, 3), axis=2)
case("strided", (11, 13), "Gather", IMAGE, Const(np.array([[-1, -3]])), axis=-1)
case("scales", (7, 8), "Upsample", IMAGE, scales=[1.0, 1.0, 2.0, 3.0])
case("input", (9,), "Upsample", IMAGE, floats(1, 1, 2, 3), mode="nearest")
case("linear", (9,), "Upsample", IMAGE, floats(1, 1, 2, 3), mode="linear")
case("ten", (10,), "Resize", IMAGE, floats(1, 1, 2, 1.7), mode="nearest")
case("ten-linear", (10,), "Resize", IMAGE, floats(1, 1, 2, 1.7), mode="linear")
for coordinates in ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"):
    for scales in ((2.0, 3.0), (1.7, 2.3), (0.6, 0.5)):
        tag = f"{coordinates}-{scales[0]}"
        case(
            f"linear-{tag}",
            (11, 13, 19),
            "Resize",
            IMAGE,
            floats(),
            floats(1, 1, *scales),
            mode="linear",
            coordinate_transformation_mode=coordinates,
        )
        for nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
            case(
                f"{nearest}-{tag}",
                (13,),
                "Resize",
                IMAGE,
                floats(),
                floats(1, 1, *scales),
                mode="nearest",
                coordinate_transformation_mode=coordinates,
                nearest_mode=nearest,
            )
    for scales in ((2.0, 3.0), (1.7, 2.3), (0.6, 0.5)):
        for options in ({}, {"cubic_coeff_a": -0.5, "exclude_outside": 1}):
            case(
                f"cubic-{coordinates}-{scales[0]}-{len(options)}",
                (11, 13, 19),
                "Resize",
                IMAGE,
                floats(),
                floats(1, 1, *scales),
                mode="cubic",
                coordinate_transformation_mode=coordinates,
                **options,
            )
case(
    "symmetric",
    (19,),
    "Resize",
    IMAGE,
    None,
    floats(1, 1, 1.7, 0.6),
    mode="linear",
    coordinate_transformation_mode="half_pixel_symmetric",
)
case(
    "tf",
    (11,),
    "Resize",
    IMAGE,
    floats(),
    floats(1, 1, 2, 2),
    mode="nearest",
    coordinate_transformation_mode="tf_half_pixel_for_nn",
)
case(
    "one",
    (13,),
    "Resize",
    IMAGE,
    None,
    None,
    ints(2, 6, 1, 1),
    mode="linear",
    coordinate_transformation_mode="pytorch_half_pixel",
)
for mode in ("nearest", "linear"):
    case(f"sizes-{mode}", (11,), "Resize", IMAGE, floats(), floats(), ints(2, 6, 13, 5), mode=mode)
    case(f"sizes-{mode}", (13, 18), "Resize", IMAGE, None, None, ints(2, 6, 13, 5), mode=mode)
case("cubic-sizes", (13, 19), "Resize", IMAGE, None, None, ints(2, 6, 13, 5), mode="cubic")
case("axes", (18, 19), "Resize", IMAGE, None, None, ints(13, 5), mode="linear", axes=[2, 3])
for mode in ("linear", "cubic"):
    for scales in ((2.0, 3.0), (0.6, 0.34)):
        given = {"mode": mode, "antialias": 1}
        tag = f"antialias-{mode}-{scales[0]}"
        case(tag, (18, 19), "Resize", IMAGE, None, floats(1, 1, *scales), **given)
    given = {"mode": mode, "antialias": 1, "exclude_outside": 1}
    case(f"shares-{mode}", (19,), "Resize", IMAGE, None, None, ints(2, 6, 3, 5), **given)
for mode in ("nearest", "linear", "cubic"):
    roi, crop = floats(0, 0, 0.2, -0.3, 1, 1, 0.9, 1.2), "tf_crop_and_resize"
    given = {"mode": mode, "coordinate_transformation_mode": crop, "extrapolation_value": 7.5}
    case(f"crop-{mode}", (13, 19), "Resize", IMAGE, roi, None, ints(2, 6, 3, 11), **given)
    one = floats(0, 0, 0.2, 0.1, 1, 1, 0.9, 0.5)
    case(f"crop-one-{mode}", (19,), "Resize", IMAGE, one, None, ints(2, 6, 1, 1), **given)
    given = {**given, "axes": [3, 2]}
    some = floats(-0.1, 0.2, 0.5, 0.7)
    case(f"crop-some-{mode}", (18,), "Resize", IMAGE, some, None, ints(5, 3), **given)
    for policy in ("not_larger", "not_smaller"):
        given = {"mode": mode, "axes": [2, 3], "keep_aspect_ratio_policy": policy}
        case(f"{policy}-{mode}", (18, 19), "Resize", IMAGE, None, None, ints(9, 13), **given)
case("plain", (7, 13, 14, 21), "Identity", IMAGE)
case("plain", (7, 10, 12, 13, 22), "Dropout", IMAGE)
case("inputs", (12, 13), "Dropout", IMAGE, Const(np.float32(0.5)), Const(np.bool_(False)))
case("float", (7, 9, 13, 19), "Cast", IMAGE, to=TensorProto.FLOAT)


@pytest.mark.parametrize(("op", "operands", "opset", "attributes"), CASES)
def test_one_operation(op: str, operands: Any, opset: int, attributes: dict[str, Any]) -> None:
    agree(*single(op, operands, opset, **attributes))


@pytest.mark.parametrize("opset", range(23, LAST_OPSET + 1))
def test_newest_opsets(opset: int) -> None:
    """The operations that opsets 23 to 28 define anew, for more dtypes only."""
    made = [
        ("Shape", ["x"], {}),
        ("Size", ["x"], {}),
        ("ConstantOfShape", ["Shape0"], {}),
        ("Identity", ["x"], {}),
        ("CastLike", ["Identity3", "ConstantOfShape2"], {}),
        ("Cast", ["CastLike4"], {"to": TensorProto.FLOAT}),
        ("Pad", ["Cast5", "pads"], {"mode": "reflect"}),
        ("Transpose", ["Pad6"], {"perm": [0, 2, 3, 1]}),
        ("Unsqueeze", ["Transpose7", "one"], {}),
        ("Squeeze", ["Unsqueeze8", "one"], {}),
        ("Reshape", ["Squeeze9", "rows"], {}),
        ("Flatten", ["Reshape10"], {}),
    ]
    nodes = [
        helper.make_node(op, inputs, [f"{op}{index}"], **attributes)
        for index, (op, inputs, attributes) in enumerate(made)
    ]
    nodes.append(helper.make_node("Cast", ["Size1"], ["size"], to=TensorProto.FLOAT))
    nodes.append(helper.make_node("Div", ["Flatten11", "size"], ["y"]))
    held = {
        name: np.array(n)
        for name, n in (("pads", [0] * 7 + [1]), ("one", [1]), ("rows", [4, -1, 3]))
    }
    agree(model(nodes, {"x": IMAGE.shape}, ["y"], held, opset), {"x": IMAGE})


@pytest.mark.parametrize("opset", [7, 12, 13, 17, 18, 22])
@pytest.mark.parametrize("sizes", [None, (1, 2, 3)])
def test_split(opset: int, sizes: tuple[int, ...] | None) -> None:
    operands: list[Any] = [IMAGE]
    attributes: dict[str, Any] = {"axis": 1}
    if sizes and opset < 13:
        attributes["split"] = sizes
    elif sizes:
        operands.append(ints(*sizes))
    elif opset >= 18:
        attributes["num_outputs"] = 3
    agree(*single("Split", operands, opset, outputs=3, **attributes))


def test_split_unevenly() -> None:
    agree(*single("Split", [normal(1, 7)], 18, outputs=3, axis=-1, num_outputs=3))


def test_lrn_of_even_size() -> None:
    """ONNX Runtime takes odd sizes only, so the formula of the specification stands here."""
    x = positive(1, 5, 2, 2)
    found = imported(*single("LRN", [x], 13, size=4, alpha=0.5, beta=0.6, bias=1.5))["out0"]
    for channel in range(5):
        around = x[:, max(0, channel - 1) : channel + 3] ** 2
        expected = x[:, channel] / (1.5 + 0.5 / 4 * around.sum(axis=1)) ** 0.6
        np.testing.assert_allclose(found[:, channel], expected, rtol=1e-6)


def test_same_padding_of_a_dilated_kernel() -> None:
    """ONNX Runtime refuses this, so the explicit padding stands for it."""
    w = Const(normal(2, 6, 3, 3))
    settings: dict[str, Any] = {"dilations": [2, 1], "strides": [2, 2]}
    same, given = single("Conv", [IMAGE, w], 11, auto_pad="SAME_UPPER", **settings)
    explicit, _ = single("Conv", [IMAGE, w], 11, pads=[2, 1, 2, 1], **settings)
    np.testing.assert_array_equal(imported(same, given)["out0"], imported(explicit, given)["out0"])


def test_every_operation_is_tested() -> None:
    tested = {parameters.values[0] for parameters in CASES} | {"Split"}
    tested |= {"ArgMax", "ArgMin", "TopK", "Xor", "IsNaN", "IsInf"}  # in test_typed_ops
    tested |= {"If", "Loop", "Scan"}  # in test_if, test_loop, test_scan
    tested |= {*indexing.RULES, *sampling.RULES}  # in test_indexing, test_sampling
    tested |= set(rearranging.RULES)  # in test_rearranging
    tested |= imported_cases.TESTED  # in test_import_elementwise and others
    tested |= {*selection.RULES, *indexing.SEQUENCES}  # in test_late, test_sequences
    tested |= {"LSTM", "GRU", "RNN"}  # in test_recurrent
    tested |= {*quantised.RULES, *quantised_microsoft.RULES}  # in test_quantised_operators
    tested |= {each.op_type for each in FOLDS.values()}
    assert tested | TESTED == set(FILE_RULES)

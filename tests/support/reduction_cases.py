"""Reductions, running totals and norms: cases of one node each."""

from __future__ import annotations

import numpy as np

from support.import_cases import Cases, Numbers
from support.onnx_models import Const, ints

NUMBERS = Numbers(17)
normal, positive = NUMBERS.normal, NUMBERS.positive
X = normal(2, 5, 3, 7)
WHOLE = np.round(10 * X)
CASES = Cases()
case = CASES.add

for op in ("ReduceProd", "ReduceLogSum", "ReduceLogSumExp"):
    x = np.abs(X) if op == "ReduceLogSum" else X
    case("axes", (7, 11, 17), op, x, axes=[2, 3])
    case("squeezed", (11, 17), op, x, axes=[-1, 1], keepdims=0)
    case("all", (7, 17, 18), op, x, keepdims=0)
    case("input", (18, 20), op, x, ints(1, -1), keepdims=0)
    case("first", (18,), op, x, ints(0))
    case("one", (18,), op, x[:, :, :1], ints(2))
    case("noop", (18,), op, x, noop_with_empty_axes=1)
for far in (np.inf, -np.inf, 3e38, -3e38):
    case(f"far{far}", (18,), "ReduceLogSumExp", np.array([[far, 1.0], [far, far]], "f4"), ints(1))
for dtype in (np.int32, np.int64):
    whole = WHOLE.astype(dtype)
    for op in ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceL1"):
        x = np.where(whole % 7 == 0, 2, np.sign(whole)) if op == "ReduceProd" else whole
        case(f"{np.dtype(dtype)}", (11,), op, x, axes=[1, 3])
        case(f"{np.dtype(dtype)}-last", (11,), op, x, axes=[3], keepdims=0)
        case(f"{np.dtype(dtype)}-first", (11,), op, x, axes=[0])
    case(f"{np.dtype(dtype)}", (18,), "ReduceSumSquare", whole, ints(2))
case("int32", (18,), "ReduceL2", WHOLE.astype(np.int32), ints(2))
for op in ("ReduceMax", "ReduceMin"):
    for small in (np.int8, np.uint8):
        case(np.dtype(small).name, (18,), op, WHOLE.astype(np.int64).astype(small), ints(1, 3))
    case("bool", (20,), op, X > 0.5, ints(-1))
for dtype in (np.float32, np.float64, np.int32, np.int64):
    whole = WHOLE.astype(dtype)
    for axis, exclusive, reverse in ((0, 0, 0), (1, 1, 0), (-1, 0, 1), (2, 1, 1)):
        place = Const(np.array(axis, np.int64))
        name = f"{np.dtype(dtype)}-{axis}"
        case(name, (11, 14), "CumSum", whole, place, exclusive=exclusive, reverse=reverse)
case("vector", (14,), "CumSum", WHOLE[0, 0, 0], Const(np.array([0], np.int32)))

for axis in (0, 1, -1):
    for p in (1, 2):
        case(f"{axis}-{p}", (7, 22), "LpNormalization", X, axis=axis, p=p)
case("zeros", (7,), "LpNormalization", X * np.float32([[0], [1], [1]]))
case("default", (9, 13), "MeanVarianceNormalization", X)
case("axes", (9, 13), "MeanVarianceNormalization", X, axes=[1, 3])
for p in (1, 2, 3):
    case(f"p{p}", (7, 13), "GlobalLpPool", X, p=p)
    case(f"p{p}", (7, 11, 22), "LpPool", X, kernel_shape=[2, 3], p=p, strides=[1, 2])
case("1d", (11,), "LpPool", X[:, :, 0], kernel_shape=[3], pads=[1, 2])
case("3d", (18,), "LpPool", normal(1, 2, 4, 5, 6), kernel_shape=[3, 1, 2], pads=[1, 0, 1, 0, 0, 0])
case("dilated", (18, 22), "LpPool", normal(1, 3, 9, 8), kernel_shape=[3, 2], dilations=[2, 3], p=3)
case(
    "ceil", (18, 22), "LpPool", normal(1, 3, 8, 9), kernel_shape=[3, 3], strides=[2, 3], ceil_mode=1
)
for auto in ("SAME_UPPER", "SAME_LOWER", "VALID"):
    case(
        auto,
        (11,),
        "LpPool",
        normal(1, 3, 8, 9),
        kernel_shape=[3, 2],
        strides=[2, 2],
        auto_pad=auto,
    )

LABELS = np.array([[[0, 4, 2], [1, 1, 3]], [[2, 0, 4], [4, 3, 2]]], np.int64)
SCORES = normal(2, 5, 2, 3)
for reduction in ("none", "sum", "mean"):
    for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
        settings = {"reduction": reduction}
        case(reduction, (13,), op, SCORES, LABELS, **settings)
        case(f"{reduction}-w", (12, 13), op, SCORES, LABELS, positive(5), **settings)
        case(f"{reduction}-i", (13,), op, SCORES, LABELS, ignore_index=4, **settings)
        far = np.where(LABELS == 4, -100, LABELS)
        case(f"{reduction}-wi", (13,), op, SCORES, far, positive(5), ignore_index=-100, **settings)
        case(f"{reduction}-2d", (13,), op, SCORES[:, :, 0, 0], LABELS[:, 0, 0], **settings)

TESTED = {parameters.values[0] for parameters in CASES} | {"CumProd", "RMSNormalization"}

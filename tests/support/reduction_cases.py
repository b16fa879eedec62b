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

TESTED = {parameters.values[0] for parameters in CASES} | {"CumProd"}

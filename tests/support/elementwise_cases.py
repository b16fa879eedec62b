"""Functions of each element by itself: cases of one node each."""

from __future__ import annotations

import numpy as np

from support.import_cases import Cases, Numbers
from support.onnx_models import Const

normal = Numbers(13).normal
X = normal(2, 5, 3, 7)
WHOLE = np.round(10 * X)
CASES = Cases()
case = CASES.add

for op in ("Sin", "Cos", "Tan", "Atan"):
    case("plain", (7, 22), op, 10 * X)
    case("far", (7,), op, 1e6 * X)
for op in ("Asin", "Acos"):
    case("plain", (7, 22), op, np.tanh(X))
for op in ("Sinh", "Cosh", "Asinh"):
    case("plain", (9, 22), op, 3 * X)
case("plain", (9, 22), "Acosh", 1 + 3 * np.abs(X))
case("plain", (9, 22), "Atanh", np.tanh(X))
case("plain", (10, 22), "ThresholdedRelu", X)
case("alpha", (10, 22), "ThresholdedRelu", X, alpha=-0.25)
case("plain", (9,), "Shrink", X)
case("bias", (9,), "Shrink", X, lambd=0.2, bias=0.7)
case("int64", (9,), "Shrink", WHOLE.astype(np.int64), lambd=2.5, bias=1.5)
for axis in (0, 1, -1, 3):
    case(f"axis{axis}", (7, 12, 13), "Hardmax", X, axis=axis)
case("default", (7, 13), "Hardmax", X)
case("equal", (13,), "Hardmax", WHOLE, axis=2)

for dtype in (np.uint8, np.int16, np.uint32, np.int64):
    low, high = (0, 200) if np.dtype(dtype).kind == "u" else (-200, 200)
    a, b = (
        np.random.default_rng(seed).integers(low, high, shape).astype(dtype)
        for seed, shape in enumerate(((3, 4, 5), (4, 1)))
    )
    for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        case(np.dtype(dtype).name, (18,), op, a, b)
    case(np.dtype(dtype).name, (18,), "BitwiseNot", a)
    if low == 0:
        for direction in ("LEFT", "RIGHT"):
            name = f"{np.dtype(dtype).name}-{direction}"
            case(name, (11,), "BitShift", a, b % 8, direction=direction)

for base in (np.int32, np.int64):
    for exponent in (np.int32, np.int64, np.float32, np.float64):
        numbers = WHOLE.astype(base)
        powers = np.array([[0], [1], [3]]).astype(exponent)
        case(f"{base.__name__}-{exponent.__name__}", (13, 15), "Pow", numbers, powers)
        case(f"{base.__name__}-{exponent.__name__}-held", (13,), "Pow", numbers, Const(powers))
case("negative", (13,), "Pow", np.array([1, -1, 2, -5], np.int64), np.array([-3], np.int64))
case("computed", (7, 16), "PRelu", X, normal(5, 1, 1))
case("int32", (16,), "PRelu", WHOLE.astype(np.int32), WHOLE[0].astype(np.int32))
LOW, HIGH = np.array(-0.5, np.float32), np.array(0.5, np.float32)
case("computed", (11, 13), "Clip", X, LOW, HIGH)
case("computed-low", (11, 13), "Clip", X, LOW)
case("crossed", (13,), "Clip", X, HIGH, LOW)
for dtype in (np.int32, np.uint8, np.int64):
    numbers = np.abs(WHOLE).astype(dtype)
    bounds = np.array(2, dtype), np.array(7, dtype)
    case(f"computed-{np.dtype(dtype)}", (13,), "Clip", numbers, *bounds)

TESTED = {parameters.values[0] for parameters in CASES} | {"Swish", "SwiGLU"}

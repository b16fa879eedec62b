"""Operations on the codes of quantised tensors; a code stands for (code - zero) * scale.

Every result has the bits of ONNX Runtime's fused operators. Where not stated otherwise, numbers are
float32, each operation is rounded, and `rint` rounds halves to even; results are clamped to
`low` and `high`, which are codes:

- QuantizeLinear: rint(x / scale) + zero, clamped to the type or to bounds; of NaN the least code;
- QuantizeFloats: the same of a scale and a zero point that are data, in the type of x;
- DequantizeLinear: (x - zero) * scale;
- QLinearAdd: rint(fma(a, ra, fma(b, rb, c))), with ra = sa / sy, rb = sb / sy and
  c = zy - fma(ra, za, rb * zb);
- QLinearMul: rint((a - za) * (b - zb) * r + zy), r = sa * sb / sy;
- QLinearMatMul: rint(float32(sum) * r) + zy, r = sa * sb / sy, the sum exact and modulo 2^32;
- QLinearGlobalAveragePool: rint(float32(sum - n * zx) * (sx / (sy * n))) + zy of n numbers;
- QLinearAveragePool: rint(sum / n / sy + zy) of numbers (x - zx) * sx, summed in row-major order;
- QLinearSoftmax: rint(e * u / sum(e)) + zy in float64, u = floor(1 / sy), the sum taken in order in
  float32, of e = exp((shift - d) * sx), d the distance to the row's largest code; the shift is as
  large as float32 allows for the sum;
- Lookup: the element of the table at x, read as a byte without a sign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, TensorType
from leanconv.graph.ops import pooling
from leanconv.graph.ops.base import (
    Array,
    Arrays,
    Op,
    Types,
    array,
    broadcast,
    check_rank,
    checked,
    first,
    required,
    single,
)
from leanconv.types import FLOAT32, FLOATS, INT8, INT16, INT32, UINT8, UINT16, DType

CODES = (UINT8, INT8)  # of activations
QUANTISED = (*CODES, UINT16, INT16)  # that QuantizeLinear gives
DEQUANTISED = (*QUANTISED, INT32)
TABLE = 256  # elements of a Lookup

_Number = np.float32


# -- between floats and codes ---------------------------------------------------------------------
def quantise(
    x: Array, scale: Array, zero: Array, low: int | None = None, high: int | None = None
) -> Array:
    """Return the codes of floats: rint(x / scale) + zero, of zero's type; all broadcast to x.

    They are clamped to `low` and `high`, by default the type's ends.
    """
    ends, offset = np.iinfo(zero.dtype), zero.astype(x.dtype)
    low, high = ends.min if low is None else low, ends.max if high is None else high
    rounded = np.rint(x / scale.astype(x.dtype))
    rounded = np.fmin(np.fmax(rounded, low - offset), high - offset)
    return np.asarray((rounded + offset).astype(zero.dtype))


def dequantise(codes: Array, scale: Array, zero: Array, dtype: DType) -> Array:
    """Return (codes - zero) * scale in some float type; scale and zero broadcast to codes."""
    away = codes.astype(np.int64) - zero.astype(np.int64)
    return np.asarray(away.astype(dtype) * scale.astype(dtype))


def along(parameter: Array, rank: int, axis: int) -> Array:
    """A scalar, or one number for each place along an axis, so that it broadcasts to `rank`."""
    if parameter.ndim == 0:
        return parameter
    return parameter.reshape(tuple(-1 if i == axis else 1 for i in range(rank)))


def _check_parameters(types: Types, axis: int) -> tuple[TensorType, TensorType]:
    """The types of x and of the zero point, if scale and zero point fit them."""
    x, scale, zero = (required(types, index) for index in range(3))
    per_axis = x.shape[axis : axis + 1] if 0 <= axis < len(x.shape) else ()
    if scale.shape != zero.shape or scale.shape not in ((), per_axis) or scale.dtype != FLOAT32:
        raise ModelError(
            f"got a scale {scale} and a zero point {zero} for {x}; expected one float32 and one "
            f"code, or as many as axis {axis} has places"
        )
    return x, zero


def _infer_quantise(types: Types, attributes: Attributes) -> TensorType:
    x, zero = _check_parameters(types, attributes["axis"])
    if zero.dtype not in QUANTISED or x.dtype not in FLOATS:
        raise ModelError(f"got {x.dtype} and codes of {zero.dtype}; expected floats and integers")
    return checked(x.shape, zero.dtype)


def _evaluate_quantise(arrays: Arrays, attributes: Attributes) -> Array:
    x = array(arrays)
    scale, zero = (along(array(arrays, i), x.ndim, attributes["axis"]) for i in (1, 2))
    return quantise(x, scale, zero, attributes.get("low"), attributes.get("high"))


def _infer_floats(types: Types, attributes: Attributes) -> TensorType:
    x, scale, zero = (required(types, index) for index in range(3))
    for kind in (scale, zero):
        if kind.dtype != x.dtype or broadcast(x.shape, kind.shape) != x.shape:
            raise ModelError(f"got {kind} beside {x}; expected floats of its type")
    return checked(x.shape, attributes["dtype"])


def _evaluate_floats(arrays: Arrays, attributes: Attributes) -> Array:
    x, scale, zero = (array(arrays, index) for index in range(3))
    y = np.fmin(np.fmax(np.rint(x / scale) + zero, attributes["low"]), attributes["high"])
    return np.asarray(y.astype(attributes["dtype"]))


def _infer_dequantise(types: Types, attributes: Attributes) -> TensorType:
    x, zero = _check_parameters(types, attributes["axis"])
    if x.dtype not in DEQUANTISED or zero.dtype != x.dtype or attributes["dtype"] not in FLOATS:
        raise ModelError(f"got {x.dtype} and a zero point of {zero.dtype}; expected codes of one")
    return checked(x.shape, attributes["dtype"])


def _evaluate_dequantise(arrays: Arrays, attributes: Attributes) -> Array:
    x = array(arrays)
    scale, zero = (along(array(arrays, i), x.ndim, attributes["axis"]) for i in (1, 2))
    return dequantise(x, scale, zero, attributes["dtype"])


# -- tables ---------------------------------------------------------------------------------------
def _infer_lookup(types: Types, _attributes: Attributes) -> TensorType:
    x, table = first(types), required(types, 1)
    if x.dtype not in CODES or table.shape != (TABLE,):
        raise ModelError(f"got {x} and the table {table}; expected bytes and {TABLE} elements")
    return checked(x.shape, table.dtype)


def _evaluate_lookup(arrays: Arrays, _attributes: Attributes) -> Array:
    return np.asarray(array(arrays, 1)[array(arrays).astype(np.uint8, copy=False)])


# -- arithmetic -----------------------------------------------------------------------------------
def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float32 numbers, rounded once; a has at most 24 bits of them.

    The product is exact in float64. Their sum is rounded to odd there, so that what follows is the
    only rounding.
    """
    product, summand = np.broadcast_arrays(a.astype(np.float64) * b, c.astype(np.float64))
    total = np.atleast_1d(product + summand)
    back = total - product
    lost = (product - (total - back)) + (summand - back)
    bits = total.view(np.int64)
    inexact = np.isfinite(total) & (lost != 0) & (bits & 1 == 0)
    bits += np.where(inexact, np.where((lost > 0) == (total > 0), 1, -1), 0)
    return total.astype(np.float32).reshape(product.shape)


def _clamped(y: Array, attributes: Attributes) -> Array:
    bounded = np.minimum(np.maximum(y, _Number(attributes["low"])), _Number(attributes["high"]))
    return np.asarray(bounded.astype(attributes["dtype"]))


def _numbers(attributes: Attributes) -> tuple[list[Any], list[Any]]:
    """Scales and zero points as float32."""
    return [_Number(s) for s in attributes["scales"]], [_Number(z) for z in attributes["zeros"]]


def add_factors(scales: Sequence[float], zeros: Sequence[int]) -> tuple[Array, Array, Array]:
    """The ra, rb and c of an addition of codes, float32 scalars.

    Args:
        scales, zeros: of both operands and of the result.
    """
    sa, sb, sy = map(_Number, scales)
    za, zb, zy = map(_Number, zeros)
    with np.errstate(all="ignore"):  # scales are a file's
        ra, rb = np.asarray(sa / sy), np.asarray(sb / sy)
        return ra, rb, np.asarray(zy - fma(ra, np.asarray(za), np.asarray(rb * zb)), np.float32)


def _evaluate_add(arrays: Arrays, attributes: Attributes) -> Array:
    a, b = array(arrays).astype(np.float32), array(arrays, 1).astype(np.float32)
    ra, rb, summand = add_factors(attributes["scales"], attributes["zeros"])
    return _clamped(np.rint(fma(a, ra, fma(b, rb, summand))), attributes)


def _evaluate_mul(arrays: Arrays, attributes: Attributes) -> Array:
    a, b = array(arrays).astype(np.float32), array(arrays, 1).astype(np.float32)
    (sa, sb, sy), (za, zb, zy) = _numbers(attributes)
    with np.errstate(all="ignore"):
        return _clamped(np.rint((a - za) * (b - zb) * (sa * sb / sy) + zy), attributes)


def _check_codes(types: Types, attributes: Attributes, inputs: int) -> None:
    """Check that inputs and result are codes, and that there are numbers for each of them."""
    for index in range(inputs):
        if required(types, index).dtype not in CODES:
            raise ModelError(f"input {index} is {types[index]}; expected {' or '.join(CODES)}")
    dtype, counts = attributes["dtype"], [len(attributes[name]) for name in ("scales", "zeros")]
    if counts != [inputs + 1] * 2 or dtype not in CODES:
        raise ModelError(f"got {counts} scales and zero points, {dtype}; expected {inputs + 1}")
    if not dtype.low <= attributes["low"] <= attributes["high"] <= dtype.high:
        raise ModelError(
            f"clamps to {attributes['low']} and {attributes['high']}; expected bounds in order, "
            f"codes of {dtype}"
        )


def _infer_binary(types: Types, attributes: Attributes) -> TensorType:
    _check_codes(types, attributes, 2)
    shape = broadcast(first(types).shape, required(types, 1).shape)
    return checked(shape, attributes["dtype"])


# -- sums -----------------------------------------------------------------------------------------
def _infer_matmul(types: Types, attributes: Attributes) -> TensorType:
    _check_codes(types, attributes, 2)
    a, b = first(types), required(types, 1)
    if min(len(a.shape), len(b.shape)) < 2 or a.shape[-1] != b.shape[-2]:
        raise ModelError(f"got {a} and {b}; expected matrices whose inner extents are equal")
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    return checked((*batch, a.shape[-2], b.shape[-1]), attributes["dtype"])


def _evaluate_matmul(arrays: Arrays, attributes: Attributes) -> Array:
    (sa, sb, sy), _ = _numbers(attributes)
    za, zb, zy = attributes["zeros"]
    sums = np.matmul(array(arrays).astype(np.int64) - za, array(arrays, 1).astype(np.int64) - zb)
    scaled = sums.astype(np.int32).astype(np.float32) * (sa * sb / sy)
    return _clamped(np.rint(scaled) + _Number(zy), attributes)


def _infer_global_pool(types: Types, attributes: Attributes) -> TensorType:
    _check_codes(types, attributes, 1)
    x = first(types)
    check_rank(x, 3, 5)
    return checked((*x.shape[:2], *(1,) * (len(x.shape) - 2)), attributes["dtype"])


def _evaluate_global_pool(arrays: Arrays, attributes: Attributes) -> Array:
    x = array(arrays)
    axes = tuple(range(2, x.ndim))
    (sx, sy), (zx, zy) = _numbers(attributes)
    count = int(np.prod(x.shape[2:]))
    sums = x.astype(np.int64).sum(axes, keepdims=True) - count * int(zx)
    scaled = sums.astype(np.int32).astype(np.float32) * (sx / (sy * _Number(count)))
    return _clamped(np.rint(scaled) + zy, attributes)


def _infer_pool(types: Types, attributes: Attributes) -> TensorType:
    _check_codes(types, attributes, 1)
    x = first(types)
    (kind,) = _POOL.infer([TensorType(x.shape, FLOAT32)], attributes)
    return checked(kind.shape, attributes["dtype"])


def _evaluate_pool(arrays: Arrays, attributes: Attributes) -> Array:
    (sx, sy), (zx, zy) = _numbers(attributes)
    floats = (array(arrays).astype(np.float32) - zx) * sx
    return _clamped(np.rint(pooling.row_major_mean(floats, attributes) / sy + zy), attributes)


_ROOM = 5  # natural logarithm of what the largest sum of powers leaves free


def softmax_powers(scale: float, count: int) -> Array:
    """The power e of each distance to the largest of `count` codes of some scale, float32."""
    largest = np.log(np.finfo(np.float32).max / _Number(max(count, 1)))
    shift = max(0.0, float(largest) - _ROOM) / scale
    return np.asarray(np.exp((shift - np.arange(TABLE)) * scale).astype(np.float32))


def softmax_steps(scale: float) -> float:
    """Return the number of steps of some scale that make 1; finite, whatever the scale."""
    with np.errstate(all="ignore"):  # scales are a file's
        return float(min(np.floor(_Number(1.0) / _Number(scale)), np.finfo(np.float32).max))


def _infer_softmax(types: Types, attributes: Attributes) -> TensorType:
    _check_codes(types, attributes, 1)
    x = first(types)
    if not 0 <= attributes["axis"] < len(x.shape):
        raise ModelError(f"got {x} and axis {attributes['axis']}; expected an axis of it")
    return checked(x.shape, attributes["dtype"])


def _evaluate_softmax(arrays: Arrays, attributes: Attributes) -> Array:
    x, axis = array(arrays).astype(np.int64), attributes["axis"]
    (sx, sy), (_, zy) = attributes["scales"], attributes["zeros"]
    if not x.size:
        return np.asarray(x.astype(attributes["dtype"]))
    powers = softmax_powers(sx, x.shape[axis])[x.max(axis, keepdims=True) - x]
    total = np.cumsum(powers, axis).take([-1], axis)
    y = np.rint(powers.astype(np.float64) * softmax_steps(sy) / total)
    return _clamped(y + int(zy), attributes)


_POOL = pooling.OPS["AveragePool"]
_QUANTISATION = ("scales", "zeros", "low", "high", "dtype")
_Infer = Callable[[Types, Attributes], TensorType]


def _of_codes(
    of_floats: str,
    routes: str,
    infer: _Infer,
    evaluate: Callable[[Arrays, Attributes], Array],
    inputs: str,
    *names: str,
    kernel: str = "elementwise",
    shifts: bool = True,
) -> Op:
    facts: dict[str, Any] = {"of_floats": of_floats, "routes": routes, "shifts": shifts}
    named, signature = (
        (*names, *_QUANTISATION),
        f"{inputs} (codes); scales, zeros: the result's last",
    )
    return single(infer, evaluate, signature, named, dtypes=CODES, kernel=kernel, **facts)


def _scaled(
    infer: _Infer, evaluate: Callable[[Arrays, Attributes], Array], *names: str, **facts: Any
) -> Op:
    """An operation of numbers, their scale and zero point."""
    signature = "x, scale, zero; one of each, or one along the axis; low, high: codes that clamp x"
    return single(infer, evaluate, signature, names, converts=True, kernel="elementwise", **facts)


_KNOWN: dict[str, Any] = {"shifts": True, "routes": "first", "single": (1,)}  # of constant scales
OPS: dict[str, Op] = {
    "QuantizeLinear": _scaled(
        _infer_quantise,
        _evaluate_quantise,
        "axis",
        dtypes=(*FLOATS, *QUANTISED),
        halves="rounded",
        **_KNOWN,
    ),
    "QuantizeFloats": _scaled(_infer_floats, _evaluate_floats, "low", "high", "dtype"),
    "DequantizeLinear": _scaled(
        _infer_dequantise,
        _evaluate_dequantise,
        "axis",
        "dtype",
        dtypes=(FLOAT32, *DEQUANTISED),
        **_KNOWN,
    ),
    "Lookup": single(
        _infer_lookup,
        _evaluate_lookup,
        "x (bytes), table (256,)",
        dtypes=(*CODES, *FLOATS),
        shifts=True,
        routes="first",
        kernel="lookup",
    ),
    "QLinearAdd": _of_codes("Add", "aligned", _infer_binary, _evaluate_add, "a, b"),
    "QLinearMul": _of_codes("Mul", "aligned", _infer_binary, _evaluate_mul, "a, b"),
    "QLinearMatMul": _of_codes(
        "MatMul", "product", _infer_matmul, _evaluate_matmul, "a, b", kernel="code_matmul"
    ),
    "QLinearGlobalAveragePool": _of_codes(
        "ReduceMean", "pooled", _infer_global_pool, _evaluate_global_pool, "x", kernel="global_pool"
    ),
    "QLinearAveragePool": _of_codes(
        "AveragePool",
        "windows",
        _infer_pool,
        _evaluate_pool,
        "x",
        *_POOL.attributes,
        kernel="pool",
        shifts=False,
    ),
    "QLinearSoftmax": _of_codes(
        "Softmax", "", _infer_softmax, _evaluate_softmax, "x", "axis", kernel="", shifts=False
    ),
}

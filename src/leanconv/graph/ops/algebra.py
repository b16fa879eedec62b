"""Reductions, running totals, softmax, normalisation and matrix products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, TensorType
from leanconv.graph.ops.base import (
    Array,
    Arrays,
    Combines,
    Op,
    Types,
    array,
    broadcast,
    check_broadcasts_to,
    check_rank,
    checked,
    first,
    given,
    quotient,
    required,
    same_dtype,
    single,
)
from leanconv.types import FLOATS, INT32, INT64
from leanconv.units import shape_text

_REDUCED = (*FLOATS, INT32, INT64)
_ALONG_AXIS: dict[str, Any] = {"attributes": ("axis",), "routes": "along axis"}


def _infer_reduction(types: Types, attributes: Attributes) -> TensorType:
    x, axes = first(types), attributes["axes"]
    rank = len(x.shape)
    if len(set(axes)) != len(axes) or any(not 0 <= axis < rank for axis in axes):
        raise ModelError(f"attribute axes is {axes}; expected distinct axes of the input {x}")
    shape = [1 if axis in axes else extent for axis, extent in enumerate(x.shape)]
    if not attributes["keepdims"]:
        shape = [extent for axis, extent in enumerate(shape) if axis not in axes]
    return checked(shape, x.dtype)


def _mean(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """The mean over axes; of integers the sum's quotient, as ONNX Runtime has it."""
    if x.dtype.kind not in "iuO":
        return np.asarray(np.mean(x, axis=axis, keepdims=keepdims))
    total = np.asarray(np.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype))
    return quotient(total, np.asarray(math.prod(x.shape[each] for each in axis), np.int64))


_COMBINED: dict[Combines, Callable[..., Array]] = {
    "mean": _mean,
    "sum": np.sum,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
}
# What changes no total, and so is that of no elements, as ONNX has it.
NEUTRAL: dict[str, float] = {"sum": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
_IN_HALVES = {("mean", ""): "scaled", ("max", ""): "exact", ("min", ""): "exact"}
_OF_EACH: dict[str, Callable[[Array], Array]] = {"Abs": np.abs, "Square": np.square}


def _reduction(combines: Combines, each: str = "") -> Op:
    """All elements of some axes as one number; a mean, and one of steps, is of floats alone."""
    function, empty = _COMBINED[combines], combines in ("sum", "prod")

    def evaluate(arrays: Arrays, attributes: Attributes) -> Array:
        x = array(arrays)
        axes = attributes["axes"]
        if not empty and any(x.shape[axis] == 0 for axis in axes):
            raise ModelError("got a reduction over an empty axis; expected at least one element")
        taken = _OF_EACH[each](x) if each else x
        y = function(taken, axis=axes, keepdims=attributes["keepdims"])
        return np.asarray(y, dtype=x.dtype)

    floats = combines == "mean" or bool(each)
    facts: dict[str, Any] = {
        "attributes": ("axes", "keepdims"),
        "takes_symbols": True,
        "dtypes": FLOATS if floats else _REDUCED,
        "halves": _IN_HALVES.get((combines, each), "wide"),
        "working": 2 if floats else 0,
        "reduces": (combines, each),
        "keeps_single": not each,
        "routes": "reduced",
        "kernel": "reduce",
    }
    return single(_infer_reduction, evaluate, **facts)


def _infer_extremes(types: Types, _attributes: Attributes) -> TensorType:
    return checked((2,), first(types).dtype)


def _evaluate_extremes(arrays: Arrays, _attributes: Attributes) -> Array:
    x = array(arrays)
    if not x.size:
        raise ModelError("got no element; expected at least one")
    return np.stack([x.min(), x.max()])


def _infer_running(types: Types, attributes: Attributes) -> TensorType:
    x = first(types)
    if not 0 <= attributes["axis"] < len(x.shape):
        raise ModelError(f"attribute axis is {attributes['axis']}; expected an axis of {x}")
    return x


def _running(function: Callable[..., Array], start: int) -> Op:
    """Totals of all elements of an axis up to each."""

    def evaluate(arrays: Arrays, attributes: Attributes) -> Array:
        x, axis = array(arrays), attributes["axis"]
        walked = np.flip(x, axis) if attributes["reverse"] else x
        y = function(walked, axis=axis, dtype=x.dtype)
        if attributes["exclusive"]:
            before = np.full_like(x.take([0], axis), start) if x.shape[axis] else x
            y = np.concatenate([before, np.delete(y, -1, axis)], axis) if x.shape[axis] else y
        return np.asarray(np.flip(y, axis) if attributes["reverse"] else y)

    facts = {**_ALONG_AXIS, "attributes": ("axis", "exclusive", "reverse"), "kernel": "cumulative"}
    return single(_infer_running, evaluate, dtypes=_REDUCED, halves="wide", **facts)


def _infer_softmax(types: Types, attributes: Attributes) -> TensorType:
    x = first(types)
    if not 0 <= attributes["axis"] < len(x.shape):
        raise ModelError(f"attribute axis is {attributes['axis']}; expected an axis of {x}")
    return x


def _shifted(x: Array, axis: int) -> Array:
    return np.asarray(x - x.max(axis=axis, keepdims=True, initial=-np.inf))


def _evaluate_softmax(arrays: Arrays, attributes: Attributes) -> Array:
    x = array(arrays)
    powers = np.exp(_shifted(x, attributes["axis"]))
    return np.asarray(powers / powers.sum(axis=attributes["axis"], keepdims=True), dtype=x.dtype)


def _evaluate_log_softmax(arrays: Arrays, attributes: Attributes) -> Array:
    x = array(arrays)
    shifted = _shifted(x, attributes["axis"])
    total = np.log(np.exp(shifted).sum(axis=attributes["axis"], keepdims=True))
    return np.asarray(shifted - total, dtype=x.dtype)


def _infer_batch_norm(types: Types, _attributes: Attributes) -> TensorType:
    same_dtype(types)
    x = first(types)
    check_rank(x, 2, 5)
    for index, what in enumerate(("scale", "bias", "mean", "variance"), 1):
        kind = required(types, index)
        if kind.shape != (x.shape[1],):
            raise ModelError(
                f"the {what} is {kind}; expected one number for each of {x.shape[1]} channels"
            )
    return x


def batch_norm_affine(parameters: Sequence[Array], epsilon: float) -> tuple[Array, Array]:
    """The factors and summands (C,) that a BatchNormalization is, of its four parameters (C,)."""
    scale, bias, mean, variance = parameters
    factor = scale / np.sqrt(variance + epsilon)
    return factor, bias - mean * factor


def _evaluate_batch_norm(arrays: Arrays, attributes: Attributes) -> Array:
    x = array(arrays)
    shape = (-1,) + (1,) * (x.ndim - 2)
    scale, bias, mean, variance = (array(arrays, i).reshape(shape) for i in range(1, 5))
    y = (x - mean) / np.sqrt(variance + attributes["epsilon"]) * scale + bias
    return np.asarray(y, dtype=x.dtype)


def _infer_matmul(types: Types, _attributes: Attributes) -> TensorType:
    dtype = same_dtype(types)
    a, b = first(types).shape, required(types, 1).shape
    if not a or not b:
        raise ModelError(
            f"got shapes {shape_text(a)} and {shape_text(b)}; expected both of rank 1 or more"
        )
    inner = b[-2] if len(b) > 1 else b[0]
    if a[-1] != inner:
        raise ModelError(
            f"got shapes {shape_text(a)} and {shape_text(b)}; expected the last axis of the first "
            f"({a[-1]}) to equal the last but one of the second ({inner})"
        )
    shape = broadcast(a[:-2], b[:-2])
    return checked((*shape, *a[-2:-1], *(b[-1:] if len(b) > 1 else ())), dtype)


def _evaluate_matmul(arrays: Arrays, _attributes: Attributes) -> Array:
    return np.asarray(np.matmul(array(arrays), array(arrays, 1)))


def _work_matmul(types: Types, _attributes: Attributes, result: TensorType) -> int:
    return result.elements * max(first(types).shape[-1], 1)


def _infer_attention(types: Types, attributes: Attributes) -> TensorType:
    dtype = same_dtype(types)
    q, k, v, mask = first(types), required(types, 1), required(types, 2), given(types, 3)
    keys = (*v.shape[:-2], v.shape[-2], q.shape[-1]) if len(q.shape) > 1 < len(v.shape) else ()
    if not attributes["transposed"]:
        keys = (*keys[:-2], *keys[:-3:-1])
    if not keys or k.shape != keys or q.shape[:-2] != v.shape[:-2]:
        raise ModelError(f"got queries {q}, keys {k} and values {v}; expected matrices that fit")
    if mask is not None:
        check_broadcasts_to(mask, (*q.shape[:-1], v.shape[-2]), "the mask")
    return checked((*q.shape[:-1], v.shape[-1]), dtype)


def _evaluate_attention(arrays: Arrays, attributes: Attributes) -> Array:
    q, k, v, mask = array(arrays), array(arrays, 1), array(arrays, 2), given(arrays, 3)
    keys = np.swapaxes(k, -1, -2) if attributes["transposed"] else k
    scores = np.asarray(np.matmul(q, keys) * q.dtype.type(attributes["scale"]))
    scores = scores if mask is None else scores + mask
    powers = np.exp(_shifted(scores, -1))
    return np.asarray(np.matmul(powers / powers.sum(axis=-1, keepdims=True), v), dtype=q.dtype)


def _work_attention(types: Types, _attributes: Attributes, result: TensorType) -> int:
    q, v = first(types), required(types, 2)
    return math.prod(q.shape[:-1]) * v.shape[-2] * (q.shape[-1] + result.shape[-1] + 1)


def numbers_of(shape: tuple[int, ...], target: tuple[int, ...], first: int) -> str:
    """Return whether an array has a number for each place, or for each channel, of lines.

    Args:
        shape: of the array, which is broadcast to the other shape.
        target: shape of the tensor that is normalised.
        first: its first axis of a line.

    Returns:
        "place" or "line"; "" for any other array.
    """
    if len(shape) > len(target):
        return ""
    full = (1,) * (len(target) - len(shape)) + shape
    if all(extent == 1 for extent in full[:first]) and full[first:] == target[first:]:
        return "place"
    one = all(extent == 1 for axis, extent in enumerate(full) if axis != 1 or first != 2)
    return "line" if one and (first != 2 or full[1] in (1, target[1])) else ""


def _infer_normalise(types: Types, attributes: Attributes) -> TensorType:
    x, rank = first(types), len(first(types).shape)
    if not 0 <= attributes["first"] < rank:
        raise ModelError(f"attribute first is {attributes['first']}; expected an axis of {x}")
    for index, what in ((1, "the scale"), (2, "the bias")):
        kind = given(types, index)
        if kind is not None and not numbers_of(kind.shape, x.shape, attributes["first"]):
            raise ModelError(
                f"{what} is {kind}; expected one number, or one for each place of the axes of {x} "
                f"from {attributes['first']} on, or for each channel where these begin at 2"
            )
    return checked(x.shape, same_dtype([kind for kind in types if kind is not None]))


def _evaluate_normalise(arrays: Arrays, attributes: Attributes) -> Array:
    x, scale, bias = array(arrays), given(arrays, 1), given(arrays, 2)
    axes = tuple(range(attributes["first"], x.ndim))
    centred = x - x.mean(axis=axes, keepdims=True) if attributes["centred"] else x
    variance = np.mean(centred * centred, axis=axes, keepdims=True)
    y = centred / np.sqrt(variance + x.dtype.type(attributes["epsilon"]))
    y = y if scale is None else y * scale
    return np.asarray(y if bias is None else y + bias, dtype=x.dtype)


def _infer_gemm(types: Types, attributes: Attributes) -> TensorType:
    dtype = same_dtype(types)
    a, b = first(types), required(types, 1)
    check_rank(a, 2, 2, "input 0")
    check_rank(b, 2, 2, "input 1")
    rows, inner = a.shape[::-1] if attributes["transA"] else a.shape
    inner_b, columns = b.shape[::-1] if attributes["transB"] else b.shape
    if inner != inner_b:
        raise ModelError(
            f"got {a} (transA={attributes['transA']}) and {b} (transB={attributes['transB']}); "
            f"expected equal inner extents, not {inner} and {inner_b}"
        )
    added = given(types, 2)
    if added is not None:
        check_broadcasts_to(added, (rows, columns), "input 2")
    return checked((rows, columns), dtype)


def _evaluate_gemm(arrays: Arrays, attributes: Attributes) -> Array:
    a, b, c = array(arrays), array(arrays, 1), given(arrays, 2)
    product = np.matmul(a.T if attributes["transA"] else a, b.T if attributes["transB"] else b)
    y = attributes["alpha"] * product
    if c is not None:
        y = y + attributes["beta"] * c
    return np.asarray(y, dtype=a.dtype)


def _work_gemm(types: Types, attributes: Attributes, result: TensorType) -> int:
    return result.elements * max(first(types).shape[0 if attributes["transA"] else 1], 1)


_SOFTMAX = {
    "halves": "rounded",
    "precise": slice(1),
    "magnifies": "difference",
    "kernel": "softmax",
    **_ALONG_AXIS,
}
OPS: dict[str, Op] = {
    "ReduceMean": _reduction("mean"),
    "ReduceProd": _reduction("prod"),
    "ReduceMax": _reduction("max"),
    "ReduceMin": _reduction("min"),
    "ReduceSum": _reduction("sum"),
    "ReduceL1": _reduction("sum", "Abs"),
    "ReduceSumSquare": _reduction("sum", "Square"),
    "ReduceMeanSquare": _reduction("mean", "Square"),
    "Extremes": single(
        _infer_extremes,
        _evaluate_extremes,
        "x; gives (2,): the least and the largest of all elements",
        halves="exact",
        working=0,
        kernel="reduce",
    ),
    "CumSum": _running(np.cumsum, 0),
    "CumProd": _running(np.cumprod, 1),
    "Softmax": single(_infer_softmax, _evaluate_softmax, **_SOFTMAX),
    "LogSoftmax": single(_infer_softmax, _evaluate_log_softmax, **_SOFTMAX),
    "BatchNormalization": single(
        _infer_batch_norm,
        _evaluate_batch_norm,
        "x, scale (C,), bias (C,), mean (C,), variance (C,)",
        ("epsilon",),
        routes="first",
    ),
    "Normalise": single(
        _infer_normalise,
        _evaluate_normalise,
        "x, scale?, bias?; (x - mean) / sqrt(variance + epsilon) * scale + bias, of all axes from "
        "first on; centred: whether the mean is taken away",
        ("first", "epsilon", "centred"),
        halves="rounded",
        magnifies="difference",
        routes="along last",
        kernel="normalise",
    ),
    "MatMul": single(
        _infer_matmul,
        _evaluate_matmul,
        "a, b (NumPy's rules)",
        (),
        _work_matmul,
        halves="rounded",
        working=0,
        routes="product",
        kernel="matmul",
    ),
    "Attention": single(
        _infer_attention,
        _evaluate_attention,
        "q (batch, M, D), k (batch, D, N), v (batch, N, W), mask (broadcasts to (batch, M, N))?; "
        "transposed: whether k is (batch, N, D)",
        ("scale", "transposed"),
        _work_attention,
        halves="rounded",
        precise=slice(3, 4),
        routes="attention",
        kernel="attention",
    ),
    "Gemm": single(
        _infer_gemm,
        _evaluate_gemm,
        "a, b, c?",
        ("transA", "transB", "alpha", "beta"),
        _work_gemm,
        halves="rounded",
        routes="gemm",
        kernel="matmul",
    ),
}

"""Where the largest or smallest numbers along an axis are: ArgMax, ArgMin and TopK."""

from __future__ import annotations

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, TensorType
from leanconv.graph.ops.base import Array, Arrays, Op, Types, array, checked, first, single
from leanconv.types import INT64, NUMBERS


def _infer_place(types: Types, attributes: Attributes) -> TensorType:
    x, axis = first(types), attributes["axis"]
    if not x.shape[axis]:
        raise ModelError(f"got {x}; expected an extent of at least 1 along axis {axis}")
    kept = (1,) if attributes["keepdims"] else ()
    return checked((*x.shape[:axis], *kept, *x.shape[axis + 1 :]), INT64)


def _place(least: bool) -> Op:
    """ArgMax, or ArgMin for `least`: of equal numbers the first, or the last."""

    def evaluate(arrays: Arrays, attributes: Attributes) -> Array:
        x, axis, keepdims = array(arrays), attributes["axis"], attributes["keepdims"]
        find = np.argmin if least else np.argmax
        if not attributes["last"]:
            return np.asarray(find(x, axis, keepdims=keepdims), np.int64)
        found = find(np.flip(x, axis), axis, keepdims=keepdims)
        return np.asarray(x.shape[axis] - 1 - found, np.int64)

    names = ("axis", "keepdims", "last")
    return single(_infer_place, evaluate, attributes=names, dtypes=NUMBERS)


def _infer_top(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    x, axis, k = first(types), attributes["axis"], attributes["k"]
    if not 0 <= k <= x.shape[axis]:
        raise ModelError(
            f"k is {k}; expected 0 to {x.shape[axis]}, the extent of axis {axis} of {x}"
        )
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return checked(shape, x.dtype), checked(shape, INT64)


def _evaluate_top(arrays: Arrays, attributes: Attributes) -> tuple[Array, ...]:
    """Sorted always; of equal numbers the one of the lower index comes first."""
    x, axis, k = array(arrays), attributes["axis"], attributes["k"]
    largest, count = attributes["largest"], x.shape[axis]
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    if not k or k * _FEW > count or (x.dtype.kind == "f" and np.isnan(x).any()):
        places = np.take(_order(x, axis, largest), np.arange(k), axis)
        return np.take_along_axis(x, places, axis), places.astype(np.int64, copy=False)
    last = axis == x.ndim - 1
    lines = (x if last else np.moveaxis(x, axis, -1)).reshape(-1, count)
    found = np.array([_first_of_line(line, k, largest) for line in lines], np.int64)
    values = np.array([line[places] for line, places in zip(lines, found, strict=True)], x.dtype)
    if last:
        return values.reshape(shape), found.reshape(shape)
    ends = (*x.shape[:axis], *x.shape[axis + 1 :], k)
    values, found = (np.moveaxis(each.reshape(ends), -1, axis) for each in (values, found))
    return np.ascontiguousarray(values), np.ascontiguousarray(found)


_FEW = 16  # times as many numbers are partitioned before they are sorted


def _order(x: Array, axis: int, largest: bool) -> Array:
    """The places of all numbers along an axis, in their order."""
    if not largest:
        return np.argsort(x, axis, kind="stable")
    # The reverse of a stable order of the reverse.
    order = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    return np.asarray(x.shape[axis] - 1 - order)


def _first_of_line(line: Array, k: int, largest: bool) -> Array:
    """The places of the first of a line, without sorting what comes after the last of them."""
    last = line.size - k if largest else k - 1
    limit = np.partition(line, last)[last]
    found = np.flatnonzero(line >= limit if largest else line <= limit)
    return np.asarray(found[_order(line[found], 0, largest)[:k]])


OPS: dict[str, Op] = {
    "ArgMax": _place(least=False),
    "ArgMin": _place(least=True),
    "TopK": Op(
        _infer_top,
        _evaluate_top,
        attributes=("axis", "k", "largest", "sorted"),
        work=lambda types, _attributes, _results: 20 * first(types).elements,
        dtypes=NUMBERS,
    ),
}

"""Operations that find elements by indices which may be data: Gather and Scatter in all forms.

An index below 0 counts from the end. One that then still lies outside of its axis ends the run.
Kernels learn of it while they compute; until then a gather reads the nearest element that there is,
and a scatter leaves the update out. Indices of ScatterElements are padded by `NOWHERE`, no error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np

from leanconv.errors import InputError, LeanConvError, ModelError, outside_text
from leanconv.graph.ir import Attributes, TensorType
from leanconv.graph.ops.base import (
    Array,
    Arrays,
    Op,
    Types,
    array,
    checked,
    dtype_of,
    first,
    given,
    required,
    single,
)
from leanconv.types import BOOL, DTYPES, HALVES, INT32, INT64
from leanconv.units import shape_text

Evaluated = Callable[[Arrays, Attributes], Array]
REDUCTIONS = ("none", "add", "mul", "min", "max")
NOWHERE = {kind: int(np.iinfo(kind).min) for kind in (INT32, INT64)}


def _indices(types: Types) -> TensorType:
    """The type of the indices, which is input 1."""
    kind = required(types, 1)
    if kind.dtype not in (INT32, INT64):
        raise ModelError(f"the indices are {kind}; expected int32 or int64")
    return kind


def _axis(types: Types, attributes: Attributes) -> int:
    x, axis = first(types), attributes["axis"]
    if not 0 <= axis < len(x.shape):
        raise ModelError(f"attribute axis is {axis}; expected an axis of {x}")
    return int(axis)


def _gathered(shape: Sequence[int], x: TensorType, axes: Sequence[int]) -> TensorType:
    """The result of a gather along some extents, each of which must have an element to find."""
    result = checked(shape, x.dtype)
    if any(extent == 0 for extent in axes) and result.elements:
        raise ModelError(f"gathers {result} from {x}, which has no elements; expected some")
    return result


def _infer_gather(types: Types, attributes: Attributes) -> TensorType:
    x, indices, axis = first(types), _indices(types), _axis(types, attributes)
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return _gathered(shape, x, x.shape[axis : axis + 1])


def check_indices(
    indices: Array, least: int, most: int, raised: type[LeanConvError] = InputError
) -> None:
    """Raise if an index is below the least or above the largest."""
    if not indices.size:
        return
    for found in (indices.min(), indices.max()):
        if not least <= int(found) <= most:
            raise raised(outside_text(int(found), least, most))


def _from_front(indices: Array, extent: int) -> Array:
    check_indices(indices, -extent, extent - 1)
    return np.where(indices < 0, indices + extent, indices)


def _evaluate_gather(arrays: Arrays, attributes: Attributes) -> Array:
    x, indices, axis = array(arrays), array(arrays, 1), attributes["axis"]
    try:
        return np.asarray(x.take(indices, axis))  # from the end where they are below 0
    except IndexError:
        return np.asarray(x.take(_from_front(indices, x.shape[axis]), axis))


def _check_alike(x: TensorType, indices: TensorType, axis: int) -> None:
    around = (*x.shape[:axis], *x.shape[axis + 1 :])
    if (*indices.shape[:axis], *indices.shape[axis + 1 :]) != around or not indices.shape:
        raise ModelError(f"got indices {indices} of {x}; expected its extents but along {axis}")


def _infer_gather_elements(types: Types, attributes: Attributes) -> TensorType:
    x, indices, axis = first(types), _indices(types), _axis(types, attributes)
    _check_alike(x, indices, axis)
    return _gathered(indices.shape, x, x.shape[axis : axis + 1])


def _evaluate_gather_elements(arrays: Arrays, attributes: Attributes) -> Array:
    x, axis = array(arrays), attributes["axis"]
    return np.asarray(np.take_along_axis(x, _from_front(array(arrays, 1), x.shape[axis]), axis))


def _found_axes(x: TensorType, indices: TensorType, batch: int) -> int:
    """Return the number of axes behind the first `batch` that indices find."""
    depth = int(indices.shape[-1]) if indices.shape else 0
    fits = 0 <= batch < min(len(x.shape), len(indices.shape)) and batch + depth <= len(x.shape)
    if not fits or depth < 1 or x.shape[:batch] != indices.shape[:batch]:
        raise ModelError(
            f"got indices {indices} of {x} with {batch} common axes in front; expected these to be "
            "equal, and as the last extent a number of axes that are left"
        )
    return depth


def _infer_gather_nd(types: Types, attributes: Attributes) -> TensorType:
    x, indices, batch = first(types), _indices(types), attributes["batch_dims"]
    depth = _found_axes(x, indices, batch)
    shape = (*indices.shape[:-1], *x.shape[batch + depth :])
    return _gathered(shape, x, x.shape[batch : batch + depth])


def _evaluate_gather_nd(arrays: Arrays, attributes: Attributes) -> Array:
    x, indices, batch = array(arrays), array(arrays, 1), attributes["batch_dims"]
    depth = indices.shape[-1]
    found, parts = x.shape[batch : batch + depth], prod(x.shape[:batch])
    if not batch:
        with suppress(IndexError, ValueError):  # one is outside, or below 0
            each = tuple(indices[..., axis] for axis in range(depth))
            places = each[0] if depth == 1 else np.ravel_multi_index(each, found)
            return np.asarray(x.reshape(prod(found), *x.shape[depth:]).take(places, 0))
    lists = indices.reshape(parts, -1, depth)
    rows = np.arange(parts)[:, None] * np.ones((1, lists.shape[1]), np.int64)
    for axis, extent in enumerate(found):
        rows = rows * extent + _from_front(lists[:, :, axis], extent)
    flat = x.reshape(parts * prod(found), -1) if x.size else x.reshape(parts * prod(found), 0)
    return np.asarray(flat[rows]).reshape(*indices.shape[:-1], *x.shape[batch + depth :])


# -- scatter ------------------------------------------------------------------------------------
def _check_reduction(types: Types, attributes: Attributes) -> None:
    x, updates, reduction = first(types), required(types, 2), attributes["reduction"]
    if reduction not in REDUCTIONS:
        raise ModelError(
            f"attribute reduction is {reduction!r}; expected one of {', '.join(REDUCTIONS)}"
        )
    if updates.dtype != x.dtype:
        raise ModelError(f"got updates {updates} of {x}; expected one dtype for both")
    if reduction != "none" and x.dtype in (BOOL, *HALVES):
        raise ModelError(f"scatters {x.dtype} by {reduction}; expected numbers, or no reduction")


def _infer_scatter_elements(types: Types, attributes: Attributes) -> TensorType:
    x, indices, axis = first(types), _indices(types), _axis(types, attributes)
    _check_reduction(types, attributes)
    if indices.shape != required(types, 2).shape or len(indices.shape) != len(x.shape):
        raise ModelError(f"got indices {indices} of updates {types[2]}; expected one for each")
    pairs = enumerate(zip(indices.shape, x.shape, strict=True))
    if any(own > extent for place, (own, extent) in pairs if place != axis):
        raise ModelError(f"got indices {indices} of {x}; expected no more than it has")
    return x


def _apply(y: Array, at: Any, updates: Array, reduction: str) -> None:
    if reduction == "none":
        y[at] = updates
        return
    ufunc = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}[reduction]
    ufunc.at(y, at, updates)


def _evaluate_scatter_elements(arrays: Arrays, attributes: Attributes) -> Array:
    x, indices, updates = (array(arrays, index) for index in range(3))
    axis, y = attributes["axis"], np.array(x)
    if not attributes["padded"]:
        at = list(np.ogrid[tuple(map(slice, indices.shape))])
        at[axis] = _from_front(indices, x.shape[axis])
        _apply(y, tuple(at), updates, attributes["reduction"])
        return y
    inside = indices != NOWHERE[dtype_of(indices)]
    at = list(np.nonzero(inside))
    at[axis] = _from_front(indices[inside], x.shape[axis])
    _apply(y, tuple(at), updates[inside], attributes["reduction"])
    return y


def _infer_scatter_nd(types: Types, attributes: Attributes) -> TensorType:
    x, indices, updates = first(types), _indices(types), required(types, 2)
    depth = _found_axes(x, indices, 0)
    _check_reduction(types, attributes)
    shape = (*indices.shape[:-1], *x.shape[depth:])
    if updates.shape != shape:
        raise ModelError(f"the updates are {updates}; expected the shape {shape_text(shape)}")
    return x


def _evaluate_scatter_nd(arrays: Arrays, attributes: Attributes) -> Array:
    x, indices, updates = (array(arrays, index) for index in range(3))
    y, depth = np.array(x), indices.shape[-1]
    lists = indices.reshape(-1, depth)
    at = tuple(_from_front(lists[:, axis], x.shape[axis]) for axis in range(depth))
    _apply(y, at, updates.reshape(len(lists), *x.shape[depth:]), attributes["reduction"])
    return y


def _of_found(evaluate: Evaluated, lists: bool) -> Evaluated:
    """A gather of which a third input says how many rows are found, the first ones.

    Args:
        evaluate: gathers all.
        lists: whether the last axis of the indices is of one list.
    """

    def evaluated(arrays: Arrays, attributes: Attributes) -> Array:
        count = given(arrays, 2)
        if count is None:
            return evaluate(arrays, attributes)
        x, indices = array(arrays), array(arrays, 1)
        listed = indices.reshape(-1, indices.shape[-1]) if lists else indices.reshape(-1)
        found = evaluate([x, listed[: int(count[0])]], attributes)
        axis = 0 if lists else attributes["axis"]
        around = x.shape[indices.shape[-1] :] if lists else x.shape[axis + 1 :]
        before = indices.shape[:-1] if lists else (*x.shape[:axis], *indices.shape)
        room = np.zeros((*before, *around), x.dtype)
        room.reshape(-1)[: found.size] = found.reshape(-1)
        return room

    return evaluated


def _op(
    infer: Callable[..., TensorType],
    evaluate: Callable[..., Array],
    places: int,
    *names: str,
    routes: str = "",
) -> Op:
    updates = "reduction" in names
    signature = "x, indices" if infer is _infer_gather_elements else _FOUND
    facts: dict[str, Any] = {"dtypes": DTYPES, "working": 0, "places": places, "routes": routes}
    if updates:
        signature = "x, indices, updates; reduction: none, add, mul, min, max"
    facts["moves"] = slice(0, 3, 2) if updates else slice(1)
    facts["kernel"] = "scatter" if updates else "gather"
    return single(infer, evaluate, signature, names, **facts)


_FOUND = "x, indices, how many of these are there (1,)?"
GATHERS: dict[str, Op] = {
    "Gather": _op(
        _infer_gather, _of_found(_evaluate_gather, lists=False), 1, "axis", routes="gather"
    ),
    "GatherElements": _op(_infer_gather_elements, _evaluate_gather_elements, 1, "axis"),
    "GatherND": _op(_infer_gather_nd, _of_found(_evaluate_gather_nd, lists=True), 2, "batch_dims"),
}
SCATTERS: dict[str, Op] = {
    "ScatterElements": _op(
        _infer_scatter_elements, _evaluate_scatter_elements, 2, "axis", "reduction", "padded"
    ),
    "ScatterND": _op(_infer_scatter_nd, _evaluate_scatter_nd, 3, "reduction"),
}
OPS = {**GATHERS, **SCATTERS}

"""Operations that move elements without computing: views, copies, padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, TensorType
from leanconv.graph.ops.base import (
    Array,
    Arrays,
    Op,
    Types,
    array,
    broadcast,
    checked,
    first,
    required,
    same_dtype,
    single,
)
from leanconv.types import DTYPES
from leanconv.units import shape_text


def _infer_reshape(types: Types, attributes: Attributes) -> TensorType:
    x = first(types)
    result = checked(attributes["shape"], x.dtype)
    if result.elements != x.elements:
        raise ModelError(
            f"got the input {x} of {x.elements} elements and the shape {shape_text(result.shape)} "
            f"of {result.elements}; expected as many elements"
        )
    return result


def _evaluate_reshape(arrays: Arrays, attributes: Attributes) -> Array:
    return np.asarray(array(arrays).reshape(attributes["shape"]))


def _infer_transpose(types: Types, attributes: Attributes) -> TensorType:
    x, perm = first(types), attributes["perm"]
    if sorted(perm) != list(range(len(x.shape))):
        raise ModelError(
            f"attribute perm is {perm}; expected a permutation of the axes of the input {x}"
        )
    return checked([x.shape[axis] for axis in perm], x.dtype)


def _evaluate_transpose(arrays: Arrays, attributes: Attributes) -> Array:
    return np.asarray(array(arrays).transpose(attributes["perm"]), order="C")


def _infer_concat(types: Types, attributes: Attributes) -> TensorType:
    dtype, axis = same_dtype(types), attributes["axis"]
    shapes = [required(types, index).shape for index in range(len(types))]
    rank = len(shapes[0])
    if not 0 <= axis < rank:
        raise ModelError(f"attribute axis is {axis}; expected an axis of inputs of rank {rank}")
    around = (shapes[0][:axis], shapes[0][axis + 1 :])
    for shape in shapes:
        if len(shape) != rank or (shape[:axis], shape[axis + 1 :]) != around:
            raise ModelError(
                f"got inputs of shapes {shape_text(shapes[0])} and {shape_text(shape)}; expected "
                f"equal extents on every axis but {axis}"
            )
    total = sum(shape[axis] for shape in shapes)
    return checked((*around[0], total, *around[1]), dtype)


def _evaluate_concat(arrays: Arrays, attributes: Attributes) -> Array:
    parts = [array(arrays, index) for index in range(len(arrays))]
    return np.concatenate(parts, axis=attributes["axis"])


def _infer_slice(types: Types, attributes: Attributes) -> TensorType:
    x = first(types)
    starts, steps, sizes = (attributes[n] for n in ("starts", "steps", "sizes"))
    if not len(starts) == len(steps) == len(sizes) == len(x.shape):
        raise ModelError(
            f"got starts {starts}, steps {steps} and sizes {sizes}; expected one of each for "
            f"every axis of the input {x}"
        )
    for extent, start, step, size in zip(x.shape, starts, steps, sizes, strict=True):
        last = start + (size - 1) * step
        if size < 0 or step == 0 or (size and not (0 <= start < extent and 0 <= last < extent)):
            raise ModelError(
                f"got start {start}, step {step} and size {size}; expected elements within "
                f"[0, {extent})"
            )
    return checked(sizes, x.dtype)


def slice_index(
    starts: tuple[int, ...], steps: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[slice, ...]:
    """The NumPy index of a Slice in normal form."""
    index = []
    for start, step, size in zip(starts, steps, sizes, strict=True):
        stop = start + size * step
        index.append(slice(start, stop if stop >= 0 else None, step) if size else slice(0, 0))
    return tuple(index)


def _evaluate_slice(arrays: Arrays, attributes: Attributes) -> Array:
    index = slice_index(attributes["starts"], attributes["steps"], attributes["sizes"])
    return np.asarray(array(arrays)[index], order="C")


def _infer_split(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    x, axis, sizes = first(types), attributes["axis"], attributes["sizes"]
    if not 0 <= axis < len(x.shape):
        raise ModelError(f"attribute axis is {axis}; expected an axis of the input {x}")
    if not sizes or any(size < 0 for size in sizes) or sum(sizes) != x.shape[axis]:
        raise ModelError(
            f"attribute sizes is {sizes}; expected parts of axis {axis} of the input {x}"
        )
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    return tuple(checked((*before, size, *after), x.dtype) for size in sizes)


def _evaluate_split(arrays: Arrays, attributes: Attributes) -> tuple[Array, ...]:
    x, around = array(arrays), (slice(None),) * attributes["axis"]
    ends = accumulate((int(size) for size in attributes["sizes"]), initial=0)
    indices = [(*around, slice(start, end)) for start, end in pairwise(ends)]
    return tuple(np.asarray(x[index], order="C") for index in indices)


def _infer_pad(types: Types, attributes: Attributes) -> TensorType:
    x, pads, mode = first(types), attributes["pads"], attributes["mode"]
    rank = len(x.shape)
    if len(pads) != 2 * rank or any(p < 0 for p in pads):
        raise ModelError(
            f"attribute pads is {pads}; expected {2 * rank} integers of at least 0 for the "
            f"input {x}"
        )
    if mode not in ("constant", "reflect", "edge"):
        raise ModelError(f"attribute mode is {mode!r}; expected constant, reflect or edge")
    for extent, before, after in zip(x.shape, pads[:rank], pads[rank:], strict=True):
        most = extent - 1 if mode == "reflect" else 0 if extent == 0 else None
        if mode != "constant" and most is not None and max(before, after) > max(most, 0):
            raise ModelError(
                f"got {mode} padding by {before} and {after} of an axis of extent {extent}; "
                f"expected at most {max(most, 0)}"
            )
    shape = [e + b + a for e, b, a in zip(x.shape, pads[:rank], pads[rank:], strict=True)]
    return checked(shape, x.dtype)


def _evaluate_pad(arrays: Arrays, attributes: Attributes) -> Array:
    x, pads = array(arrays), attributes["pads"]
    widths = list(zip(pads[: x.ndim], pads[x.ndim :], strict=True))
    if attributes["mode"] == "constant":
        value = np.asarray(attributes["value"]).astype(x.dtype)
        return np.pad(x, widths, constant_values=value)
    return np.asarray(np.pad(x, widths, mode=attributes["mode"]))


def _infer_expand(types: Types, attributes: Attributes) -> TensorType:
    x = first(types)
    shape = checked(attributes["shape"], x.dtype).shape
    result = checked(broadcast(x.shape, shape), x.dtype)
    if result.shape != shape:
        raise ModelError(
            f"attribute shape is {shape_text(shape)}; expected one that the input {x} fills"
        )
    return result


def _evaluate_expand(arrays: Arrays, attributes: Attributes) -> Array:
    return np.asarray(np.broadcast_to(array(arrays), attributes["shape"]), order="C")


def moves_nothing(op: str, operands: int, shape: tuple[int, ...], attributes: Attributes) -> bool:
    """Return whether an operation gives back its first input, of the result's shape."""
    if op == "Slice":
        steps = zip(attributes["steps"], shape, strict=True)
        return all(step == 1 or extent < 2 for step, extent in steps)
    if op == "Transpose":
        moved = [axis for axis in attributes["perm"] if shape[axis] != 1]
        return moved == sorted(moved)
    if op == "Concat":
        return operands == 1
    if op == "Resize":
        return all(scale == 1 for scale in attributes["scales"])
    return op in ("Reshape", "Expand", "Pad", "Split")


def _move(
    infer: Callable[[Types, Attributes], TensorType],
    evaluate: Callable[[Arrays, Attributes], Array],
    *attributes: str,
    **facts: Any,
) -> Op:
    """An operation that gives elements of any type back as they are."""
    sizes = tuple(name for name in attributes if name in ("shape", "sizes"))
    facts = {"size_attributes": sizes, **_MOVES, **facts}
    return single(infer, evaluate, attributes=attributes, **facts)


_MOVES: dict[str, Any] = {"takes_symbols": True, "dtypes": DTYPES, "moves": slice(1), "working": 0}
_EACH: dict[str, Op] = {
    "Reshape": _move(_infer_reshape, _evaluate_reshape, "shape", rearranges=True, routes="reshape"),
    "Transpose": _move(
        _infer_transpose, _evaluate_transpose, "perm", rearranges=True, routes="transpose"
    ),
    "Concat": _move(
        _infer_concat,
        _evaluate_concat,
        "axis",
        signature="x, more...",
        moves=slice(None),
        routes="along axis",
    ),
    "Slice": _move(
        _infer_slice, _evaluate_slice, "starts", "steps", "sizes", rearranges=True, routes="slice"
    ),
    "Split": Op(
        _infer_split,
        _evaluate_split,
        "x; gives an output for each part",
        attributes=("axis", "sizes"),
        rearranges=True,
        routes="split",
        size_attributes=("sizes",),
        **_MOVES,
    ),
    "Pad": _move(
        _infer_pad,
        _evaluate_pad,
        "pads",
        "mode",
        "value",
        takes_symbols=False,
        working=2,
        routes="pad",
    ),
    "Expand": _move(_infer_expand, _evaluate_expand, "shape", rearranges=True, routes="aligned"),
}
OPS = {op: replace(each, kernel="layout") for op, each in _EACH.items()}

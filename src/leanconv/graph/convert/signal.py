"""Fourier transforms of data, windows and mel filters: sizes are known when a network is bound.

A transform is a product with a matrix of cosines and sines. One of many numbers, of which the
matrix would be large, is taken apart into two whose lengths are its factors (Cooley and Tukey,
1965): X[k + L k'] = sum over n' of w^(n' k) (sum over n of x[M n + n'] u^(n k)) v^(n' k') for a
length of L M, with roots of unity u, v and w of order L, M and L M.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.convert.elementwise import floating
from leanconv.graph.convert.rule import Call, Older, Rule
from leanconv.graph.convert.shapes import counted, part_of
from leanconv.graph.ops.base import MAX_RANK, Array, check_rank, checked
from leanconv.graph.value import Value
from leanconv.types import FLOAT32, INT64
from leanconv.units import format_bytes

DIRECT = 1024  # the longest transform by one product where there are factors
MOST_BYTES = 1 << 28  # of a matrix
_PART = 1 << 15  # elements of it that are made at once, or those of a row
_ROOT_BYTES = 48  # in which NumPy works for each of these
_BIN_BYTES = 1 << 11  # of traffic, while which NumPy fills a filter


def _roots(length: int, rows: Array, columns: int, sign: int) -> Array:
    """e^(sign 2 pi i n k / length) for n of `rows` and k below `columns`, in float64."""
    order = np.multiply.outer(rows, np.arange(columns, dtype=INT64))
    return np.asarray(np.exp(sign * 2j * math.pi / length * (order % length)))


def _held(
    call: Call, make: Callable[[Array], Array], rows: int, shape: tuple[int, ...], like: Value
) -> Value:
    """A matrix in the file's stead; extents are numbers here, as its elements depend on them.

    Args:
        call: the node.
        make: makes what belongs to some rows of roots, given by their numbers.
        rows: how many there are.
        shape: of the matrix.
        like: a value of its type.
    """
    shape = tuple(map(int, shape))
    size = math.prod(shape) * like.type.dtype.bytes
    if size > MOST_BYTES:
        raise UnsupportedError(
            f"takes a matrix of {format_bytes(size)} for a transform whose length has no factors; "
            f"expected at most {format_bytes(MOST_BYTES)}: another length"
        )

    def whole() -> Array:
        made = np.empty(shape, like.type.dtype)
        parts = made.reshape(rows, -1)
        step = max(1, _PART // parts.shape[1])
        for first in range(0, rows, step):
            some = np.arange(first, min(first + step, rows), dtype=INT64)
            parts[first : first + step] = make(some).reshape(len(some), -1)
        return made

    at_once = min(math.prod(shape), max(_PART, math.prod(shape) // max(1, rows)))
    working = _ROOT_BYTES * at_once
    return call.fold(whole, shape, like.type.dtype, working)


def _by_matrix(call: Call, x: Value, length: int, bins: int, sign: int) -> Value:
    """The first bins of a transform of (outer, numbers, 1 or 2), as (outer, bins, 2)."""
    outer, count, parts = x.shape

    def matrix(rows: Array) -> Array:
        roots = _roots(length, rows, bins, sign)
        real = np.stack([roots.real, roots.imag], -1)
        imaginary = np.stack([-roots.imag, roots.real], -1)
        return real if parts == 1 else np.stack([real, imaginary], 1)

    held = _held(call, matrix, int(count), (count * parts, 2 * bins), x)
    y = call.emit("MatMul", [call.reshape(x, (outer, count * parts)), held])
    return call.reshape(y, (outer, bins, 2))


def _factor(length: int) -> int:
    """The largest factor of a length that is no larger than its root."""
    return next(f for f in range(math.isqrt(length), 0, -1) if length % f == 0)


def _transform(call: Call, x: Value, length: int, bins: int, sign: int) -> Value:
    """`_by_matrix`, or two shorter ones; numbers that are missing are 0."""
    outer, count, parts = x.shape
    checked((outer, length, parts), x.type.dtype)  # before factors are sought
    if count > length:
        x, count = part_of(call, x, 1, 0, 1, length), length
    first = _factor(length) if length > DIRECT else 1
    if first == 1:
        return _by_matrix(call, x, length, bins, sign)
    second = length // first
    if count < length:
        pads = (0, 0, 0, 0, length - count, 0)
        x = call.emit("Pad", [x], pads=pads, mode="constant", value=0.0)
    x = call.emit("Transpose", [call.reshape(x, (outer, first, second, parts))], perm=(0, 2, 1, 3))
    y = call.reshape(x, (outer * second, first, parts))
    y = _transform(call, y, first, first, sign)
    y = call.reshape(y, (outer, second, first, 2))
    y = call.emit("Transpose", [y], perm=(0, 2, 1, 3))  # (outer, k, n', 2)
    y = _turned(call, y, length, sign)
    y = _transform(call, call.reshape(y, (outer * first, second, 2)), second, second, sign)
    y = call.emit("Transpose", [call.reshape(y, (outer, first, second, 2))], perm=(0, 2, 1, 3))
    y = call.reshape(y, (outer, length, 2))
    return y if bins == length else part_of(call, y, 1, 0, 1, bins)


def _turned(call: Call, x: Value, length: int, sign: int) -> Value:
    """(outer, k, n', 2) times the roots w^(n' k)."""
    shape = (*x.shape[1:3], 1)

    def root(imaginary: bool) -> Value:
        def make(rows: Array) -> Array:
            roots = _roots(length, rows, shape[1], sign)
            return np.asarray(roots.imag if imaginary else roots.real)

        return _held(call, make, shape[0], shape, x)

    cosine, sine = root(False), root(True)
    a, b = (part_of(call, x, 3, i, 1, 1) for i in range(2))
    real = call.emit("Sub", [call.emit("Mul", [a, cosine]), call.emit("Mul", [b, sine])])
    imaginary = call.emit("Add", [call.emit("Mul", [a, sine]), call.emit("Mul", [b, cosine])])
    return call.emit("Concat", [real, imaginary], axis=3)


def _half_inverse(call: Call, x: Value, length: int) -> Value:
    """Real numbers (outer, length, 1) from the first half of their transform."""
    bins = min(x.shape[1], length // 2 + 1)
    x = part_of(call, x, 1, 0, 1, bins)
    outer, _, parts = x.shape

    def matrix(rows: Array) -> Array:
        alone = (rows == 0) | ((length % 2 == 0) & (rows == length // 2))
        weight = np.where(alone, 1.0, 2.0)
        roots = _roots(length, rows, length, 1) * weight[:, None] / length
        return np.stack([roots.real, -roots.imag][:parts], 1)

    held = _held(call, matrix, int(bins), (bins * parts, length), x)
    y = call.emit("MatMul", [call.reshape(x, (outer, bins * parts)), held])
    return call.reshape(y, (outer, length, 1))


def _dft(call: Call) -> list[Value]:
    """Transform real (..., 1) or complex (..., 2) numbers along one axis."""
    x = floating(call)
    rank = len(x.shape)
    check_rank(x.type, 2, MAX_RANK)
    if x.shape[-1] not in (1, 2):
        raise ModelError(f"input 0 is {x.type}; expected a last axis of 1 or 2: real, complex")
    axis = call.attribute("axis", 1)
    if call.opset >= 20:
        axis = call.whole(2) if call.optional(2) is not None else -2
    axis = call.axis(axis, rank)
    if axis == rank - 1:
        raise ModelError(f"axis is {axis}, that of the parts; expected one before")
    inverse, half = call.flag("inverse"), call.flag("onesided")
    length = x.shape[axis] if not (inverse and half) else 2 * (x.shape[axis] - 1)
    if call.optional(1) is not None:
        length = call.whole(1)
    length = int(length)
    if length < 1:
        raise ModelError(f"the length of the transform is {length}; expected at least 1")
    order = (*(i for i in range(rank - 1) if i != axis), axis, rank - 1)
    moved = call.emit("Transpose", [x], perm=order)
    outer = moved.shape[:-2]
    flat = call.reshape(moved, (math.prod(outer), *moved.shape[-2:]))
    if inverse and half:
        y = _half_inverse(call, flat, length)
    else:
        bins = length // 2 + 1 if half else length
        y = _transform(call, flat, length, bins, 1 if inverse else -1)
        if inverse:
            y = call.emit("Mul", [y, call.number(1 / length, y)])
    y = call.reshape(y, (*outer, *y.shape[1:]))
    back = tuple(order.index(i) for i in range(rank))
    return [call.emit("Transpose", [y], perm=back)]


def _stft(call: Call) -> list[Value]:
    """Transforms of frames, each a step behind the one before, times a window."""
    x, window = floating(call), call.optional(2)
    if len(x.shape) == 2:
        x = call.reshape(x, (*x.shape, 1))
    check_rank(x.type, 3, 3)
    step, extent = call.whole(1), x.shape[1]
    if call.optional(3) is not None:
        length = call.whole(3)
    else:
        length = extent if window is None else window.shape[0]
    if step < 1 or not 1 <= length <= extent or x.shape[2] not in (1, 2):
        raise ModelError(
            f"got frames of {length} each {step} of {x.type}; expected them within, and a last "
            "axis of 1 or 2"
        )
    if window is not None and window.shape != (length,):
        raise ModelError(f"got the window {window.type}; expected {length} numbers, as a frame has")
    frames = int(1 + (extent - length) // step)  # a number, as the places depend on it
    first = counted(call, frames, (frames, 1))
    first = call.emit("Mul", [first, call.number(step, first)])
    places = call.emit("Add", [first, counted(call, length, (length,))])
    y = call.emit("Gather", [x, places], axis=1)
    if window is not None:
        y = call.emit("Mul", [y, call.reshape(window, (length, 1))])
    bins = length // 2 + 1 if call.flag("onesided", 1) else length
    y = call.reshape(y, (x.shape[0] * frames, length, x.shape[2]))
    y = _transform(call, y, length, bins, -1)
    return [call.reshape(y, (x.shape[0], frames, bins, 2))]


# -- constants ----------------------------------------------------------------------------------
_WINDOWS: dict[str, tuple[float, ...]] = {  # weights of cos 0, -cos 2 pi n / N, cos 4 pi n / N
    "HannWindow": (0.5, 0.5),
    "HammingWindow": (25 / 46, 21 / 46),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}


def _window(call: Call) -> list[Value]:
    """A window of cosines."""
    size = call.whole(0)
    dtype = call.builder.kept(call.attribute("output_datatype", FLOAT32))
    if size < 1:
        raise ModelError(f"the size is {size}; expected at least 1")
    period = size if call.flag("periodic", 1) else size - 1

    def make() -> Array:
        angle = 2 * math.pi * np.arange(size) / max(period, 1)
        weights = _WINDOWS[call.node.op]
        terms = [(-1) ** k * w * np.cos(k * angle) for k, w in enumerate(weights)]
        return np.asarray(sum(terms)).astype(dtype)

    return [call.fold(make, (size,), dtype, 12 * size * dtype.bytes)]


def _mel(call: Call) -> list[Value]:
    """Triangles over the bins of a transform, evenly spaced in mels."""
    bins, length, rate = (call.whole(index) for index in range(3))
    low, high = (float(call.scalar(index)) for index in (3, 4))
    dtype = call.builder.kept(call.attribute("output_datatype", FLOAT32))
    if min(bins, length, rate) < 1 or not 0 <= low <= high < math.inf:
        raise ModelError(
            f"got {bins} bins, a length of {length}, a rate of {rate} and edges {low} and {high}; "
            "expected numbers above 0, and edges in order"
        )
    shape = (length // 2 + 1, bins)

    def make() -> Array:
        mels = [2595 * np.log10(1 + edge / 700) for edge in (low, high)]
        steps = np.arange(bins + 2) * ((mels[1] - mels[0]) / (bins + 2)) + mels[0]
        places = ((length + 1) * (700 * (10 ** (steps / 2595) - 1)) // rate).astype(INT64)
        made = np.zeros(shape)
        for i, (left, top, right) in enumerate(zip(places, places[1:], places[2:], strict=False)):
            made[left : top + 1, i] = np.arange(top - left + 1) / max(top - left, 1)
            made[top, i] = 1
            made[top:right, i] = np.arange(right - top, 0, -1) / max(right - top, 1)
        return made.astype(dtype)

    call.builder.budget.charge(_BIN_BYTES * bins)
    return [call.fold(make, shape, dtype, 2 * math.prod(shape) * dtype.bytes)]


_MADE = {"output_datatype": "dtype"}
RULES: dict[str, Rule] = {
    "DFT": Rule(
        _dft,
        {"axis": "int", "inverse": "int", "onesided": "int"},
        1,
        3,
        since=17,
        moved=(20, ("axis",)),
        older=Older(20, {}, (1, 2)),
    ),
    "STFT": Rule(_stft, {"onesided": "int"}, 2, 4, (0, 2), since=17),
    **{op: Rule(_window, {"periodic": "int", **_MADE}, 1, 1, (), since=17) for op in _WINDOWS},
    "MelWeightMatrix": Rule(_mel, _MADE, 5, 5, (), since=17),
}

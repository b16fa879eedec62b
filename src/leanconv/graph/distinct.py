"""Which slices of an array are different, with little memory beside the array's.

NumPy's `unique` takes some hundred bytes for each element of a slice.
"""

from __future__ import annotations

import numpy as np

from leanconv.graph.ops.base import Array


def distinct(
    x: Array, axis: int | None, only_values: bool = False
) -> tuple[Array, Array, Array, Array]:
    """Different slices in their order; where each is first, which each is, how often each is.

    Zeros are one number, whatever their sign, and so are all that are not numbers.

    Args:
        x: of floats, integers or bools.
        axis: of the slices; None for single elements.
        only_values: whether nothing is asked of places and counts, which may then be empty.
    """
    if axis is None:
        return _distinct_elements(x.reshape(-1), only_values)
    count = x.shape[axis]
    keys = _ordered_bytes(np.moveaxis(x, axis, 0).reshape(count, x.size // max(1, count)))
    order = np.arange(count)
    if keys.size:
        order = keys.view(f"V{keys.shape[1]}").reshape(count).argsort(kind="stable")
    keys = keys[order]
    begins = np.ones(count, bool)
    begins[1:] = (keys[1:] != keys[:-1]).any(1)
    first = order[begins]
    which = np.empty(count, np.int64)
    which[order] = np.cumsum(begins) - 1
    counts = np.diff(np.append(np.flatnonzero(begins), count))
    return x.take(first, axis), first, which, counts


def _distinct_elements(x: Array, only_values: bool) -> tuple[Array, Array, Array, Array]:
    """`distinct` of a list, by orders that need not be stable: NumPy sorts so by vectors."""
    if only_values:
        values, none = np.unique(x), np.zeros(0, np.int64)
        if x.dtype.kind == "f" and (zeros := np.flatnonzero(values == 0)).size:
            values[zeros] = x[np.argmax(x == 0)]  # with the sign of the first
        return values, none, none, none
    order = np.argsort(x)
    keys = x[order]
    begins = np.ones(x.size, bool)
    begins[1:] = keys[1:] != keys[:-1]
    if x.dtype.kind == "f":
        begins[1:] &= ~np.isnan(keys[:-1])
    places = np.flatnonzero(begins)
    first = np.minimum.reduceat(order, places) if x.size else order
    counts = np.empty_like(places)
    counts[:-1], counts[-1:] = places[1:] - places[:-1], x.size - places[-1:]
    which = np.empty(x.size, np.int64)
    which[order] = np.repeat(np.arange(places.size), counts)
    return x[first], first, which, counts


def working_for_distinct(array_bytes: int, count: int) -> int:
    """The most bytes that `distinct` works in, beside the array and the results: measured.

    Args:
        array_bytes: of the array.
        count: of slices.
    """
    return 6 * array_bytes + _SORT_BYTES * count


_SORT_BYTES = 32  # of a slice: places, copies of them while they are sorted


def _ordered_bytes(rows: Array) -> Array:
    """Rows of bytes that have the order of rows of numbers."""
    if rows.dtype.kind == "f":
        rows = np.where(np.isnan(rows), np.nan, rows + 0).astype(rows.dtype)
    words = np.ascontiguousarray(rows).view(f"u{rows.itemsize}")
    sign = words.dtype.type(1 << 8 * rows.itemsize - 1)
    if rows.dtype.kind == "f":  # those below 0 are ordered by what they are not
        words = np.where(words & sign, ~words, words | sign)
    elif rows.dtype.kind == "i":
        words = words ^ sign
    return words.astype(words.dtype.newbyteorder(">")).view(np.uint8)

"""Winograd convolution in NumPy floats, by the programs that are also emitted as code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leanconv.winograd.matrices import Transform
from leanconv.winograd.program import LinearProgram, compile_matrix
from support.exact_linear import evaluate

Array = NDArray[np.floating]


def direct(x: Array, w: Array) -> Array:
    """Return the valid correlation of x (C, H, W) with w (K, C, r, s), in float64."""
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), w.shape[2:], (1, 2))
    return np.einsum("chwrs,kcrs->khw", windows, w.astype(np.float64), optimize=True)


def along(program: LinearProgram, x: Array, axis: int) -> Array:
    """Apply a program along one axis, every operation rounded to the dtype of x."""
    values = evaluate(program, list(np.moveaxis(x, axis, 0)), lambda c: x.dtype.type(float(c)))
    shape = np.delete(x.shape, axis)
    return np.moveaxis(np.stack([np.broadcast_to(v, shape) for v in values]), 0, axis)


def sequential_products(a: Array, b: Array) -> Array:
    """Return a @ b, each sum by multiply-adds one after another, rounded to the dtype of a.

    A library's product has an order of its own on each CPU, and with it another error.
    """
    wider = np.float64 if a.dtype == np.float32 else np.longdouble
    shape = np.broadcast_shapes((*a.shape[:-1], 1), (*b.shape[:-2], 1, b.shape[-1]))
    total = np.zeros(shape, a.dtype)
    for k in range(a.shape[-1]):
        exact = a[..., k : k + 1].astype(wider) * b[..., k : k + 1, :]
        total = (total + exact).astype(a.dtype)
    return total


def winograd(x: Array, w: Array, rows: Transform, columns: Transform) -> Array:
    """Return what `direct` does, by nested F(rows) x F(columns), in the dtype of x.

    Weights are transformed in float64 and rounded once. Images need not be multiples of tiles.
    """
    channels, height, width = x.shape
    count_h, count_w = (
        -(-(size - made.r + 1) // made.m) for size, made in ((height, rows), (width, columns))
    )
    padded = np.zeros(
        (channels, count_h * rows.m + rows.r - 1, count_w * columns.m + columns.r - 1), x.dtype
    )
    padded[:, :height, :width] = x
    tiles = np.lib.stride_tricks.sliding_window_view(padded, (rows.alpha, columns.alpha), (1, 2))
    v = tiles[:, :: rows.m, :: columns.m]  # (C, tiles h, tiles w, alpha h, alpha w)
    v = along(compile_matrix(columns.bt), along(compile_matrix(rows.bt), v, 3), 4)
    g_rows, g_columns = (np.array(made.g, dtype=np.float64) for made in (rows, columns))
    u = np.einsum("ir,kcrs,js->ijkc", g_rows, w.astype(np.float64), g_columns, optimize=True)
    u = u.astype(x.dtype)
    flat = v.reshape(channels, -1, rows.alpha, columns.alpha).transpose(2, 3, 0, 1)
    product = sequential_products(u, flat)  # (a, a, K, tiles)
    y = along(compile_matrix(columns.at), along(compile_matrix(rows.at), product, 0), 1)
    y = y.reshape(rows.m, columns.m, len(w), count_h, count_w).transpose(2, 3, 0, 4, 1)
    y = y.reshape(len(w), count_h * rows.m, count_w * columns.m)
    return y[:, : height - rows.r + 1, : width - columns.r + 1]

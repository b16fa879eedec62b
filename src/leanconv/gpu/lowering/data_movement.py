"""Launches that bring elements to other places."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from leanconv.errors import UnsupportedError
from leanconv.gpu.launch import Launch, Pointer, blocks, dense_strides, divisor, make_launch
from leanconv.types import FLOAT64, DType
from leanconv.units import shape_text

BOX_RANK = 6
_BLOCK = 512


def merged(shape: Sequence[int], *strides: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """A box with as few axes as possible, padded with ones to `BOX_RANK`: shape, then strides.

    Raises:
        UnsupportedError: more than `BOX_RANK` axes are left.
    """
    kept: list[list[int]] = []  # extent, then a stride of each operand
    for extent, *steps in zip(shape, *strides, strict=True):
        if extent == 1:
            continue
        if kept and all(
            outer == inner * extent for outer, inner in zip(kept[-1][1:], steps, strict=True)
        ):
            kept[-1] = [kept[-1][0] * extent, *steps]
        else:
            kept.append([extent, *steps])
    if len(kept) > BOX_RANK:
        raise UnsupportedError(
            f"a tensor of shape {shape_text(shape)} is moved along {len(kept)} separate axes; "
            f"expected at most {BOX_RANK}; use device='cpu'"
        )
    kept = [[1] + [0] * len(strides)] * (BOX_RANK - len(kept)) + kept
    return tuple(tuple(column) for column in zip(*kept, strict=True))


def box_arguments(
    extents: Sequence[int], first: Sequence[int], second: Sequence[int]
) -> dict[str, int]:
    """Kernel arguments of a box that `merged` returned: extents, and strides of two operands."""
    return {
        **{f"e{i}": extents[i] for i in range(1, BOX_RANK)},
        **{f"s{i}": first[i] for i in range(BOX_RANK)},
        **{f"t{i}": second[i] for i in range(BOX_RANK)},
    }


def is_wide(*offsets: int) -> bool:
    """Whether kernels must count elements in 64 bits; they look one block past the end."""
    return any(abs(offset) >= 2**31 - 2**16 for offset in offsets)


def _reach(extents: Sequence[int], strides: Sequence[int]) -> int:
    """The distance of a box's last element from its first, and at least the box's size."""
    far = sum((e - 1) * abs(s) for e, s in zip(extents, strides, strict=True))
    return max(far, prod(extents))


def copy_box(
    x: str,
    y: str,
    dtype: DType,
    shape: Sequence[int],
    x_strides: Sequence[int],
    y_strides: Sequence[int],
    x_start: int = 0,
    y_start: int = 0,
) -> Launch:
    """y[box] = x[box], each with strides and a first element of its own."""
    extents, of, to = merged(shape, x_strides, y_strides)
    arguments: dict[str, Pointer | int | float] = {
        "x": Pointer(x, dtype),
        "y": Pointer(y, dtype),
        "count": prod(shape),
        "x_start": x_start,
        "y_start": y_start,
        **box_arguments(extents, of, to),
    }
    grid = (blocks(prod(shape), _BLOCK),)
    wide = is_wide(*(_reach(extents, steps) for steps in (of, to)), x_start, y_start)
    return make_launch(
        "data_movement.copy", grid, arguments, {"BLOCK": _BLOCK, "WIDE": wide}, writes="y"
    )


def permute(x: str, y: str, dtype: DType, shape: Sequence[int], order: Sequence[int]) -> Launch:
    """y = x.transpose(order), dense on both sides; tiles where two axes change places."""
    swapped = _planes(shape, order)
    if swapped is not None:
        return _transpose(x, y, dtype, *swapped)
    strides = dense_strides(shape)
    result = [shape[axis] for axis in order]
    return copy_box(x, y, dtype, result, [strides[axis] for axis in order], dense_strides(result))


def _planes(shape: Sequence[int], order: Sequence[int]) -> tuple[int, int, int] | None:
    """(batch, rows, columns) if the order moves a block of last axes before the one before it."""
    rank, first = len(shape), 0
    while first < rank and order[first] == first:
        first += 1
    rest = [axis - first for axis in order[first:]]
    for cut in range(1, len(rest)):
        if rest == [*range(cut, len(rest)), *range(cut)]:
            return (
                prod(shape[:first]),
                prod(shape[first : first + cut]),
                prod(shape[first + cut :]),
            )
    return None


def _transpose(x: str, y: str, dtype: DType, batch: int, rows: int, columns: int) -> Launch:
    tile_r, tile_c = (32, 32) if min(rows, columns) > 8 else (4, 256) if rows <= 8 else (256, 4)
    return make_launch(
        "data_movement.transpose",
        (blocks(rows, tile_r) * blocks(columns, tile_c), batch),
        {"x": Pointer(x, dtype), "y": Pointer(y, dtype), "rows": rows, "columns": columns},
        {"BR": tile_r, "BC": tile_c},
        writes="y",
        divisible={"rows": divisor(rows), "columns": divisor(columns)},
    )


def fill(y: str, dtype: DType, count: int, value: float) -> Launch:
    """y[...] = value."""
    return make_launch(
        "data_movement.fill",
        (blocks(count, _BLOCK),),
        {"y": Pointer(y, dtype), "count": count, "value": float(value)},
        {"BLOCK": _BLOCK},
        writes="y",
        numbers=FLOAT64,
    )

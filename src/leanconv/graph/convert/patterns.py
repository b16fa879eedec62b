"""Patterns of matrices: ones where a label is, halves, diagonals; determinants of small ones."""

from __future__ import annotations

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.convert.arithmetic import floating
from leanconv.graph.convert.reductions import cast
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.ops.base import MAX_RANK, check_rank
from leanconv.graph.value import Value
from leanconv.types import BOOL, INT64

MOST_SQUARE = 4  # rows of a matrix whose determinant is written out


def counted(call: Call, extent: int, shape: tuple[int, ...]) -> Value:
    """0, 1, ... along the one axis of a shape that is not 1."""
    extents = tuple(map(int, shape))  # numbers, as the elements are
    return call.fold(lambda: np.arange(extent, dtype=INT64).reshape(extents), extents, INT64)


def _one_hot(call: Call) -> list[Value]:
    """on where the index is the place along a new axis, else off; -1 is the last place."""
    indices, values = call.value(), call.value(2)
    depth = call.whole(1)
    if depth < 1 or values.shape != (2,):
        raise ModelError(
            f"got the depth {depth} and values {values.type}; expected at least 1, and two values"
        )
    check_rank(indices.type, 0, MAX_RANK - 1)
    rank = len(indices.shape) + 1
    axis = call.axis(call.attribute("axis", -1), rank)
    indices = cast(call, indices, INT64)
    below = call.emit("Less", [indices, call.number(0, indices)])
    wrapped = call.emit("Add", [indices, call.number(depth, indices)])
    places = call.emit("Where", [below, wrapped, indices])
    places = call.reshape(places, (*places.shape[:axis], 1, *places.shape[axis:]))
    along = counted(call, depth, (depth, *(1,) * (rank - 1 - axis)))
    off, on = (
        call.reshape(call.emit("Slice", [values], starts=(i,), steps=(1,), sizes=(1,)), ())
        for i in range(2)
    )
    return [call.emit("Where", [call.emit("Equal", [places, along]), on, off])]


def _triangle(call: Call) -> list[Value]:
    """The elements on one side of a diagonal of each matrix, 0 elsewhere."""
    x = call.value()
    check_rank(x.type, 2, MAX_RANK)
    k = call.whole(1) if call.optional(1) is not None else 0
    upper = call.flag("upper", 1)
    rows, columns = map(int, x.shape[-2:])  # numbers, as the mask depends on them

    def kept() -> np.ndarray:
        row, column = np.arange(rows)[:, None], np.arange(columns) - bound
        return np.asarray(row <= column if upper else row >= column)

    bound = max(min(k, 1 << 40), -(1 << 40))
    mask = call.fold(kept, (rows, columns), BOOL, 24 * (rows + columns))
    return [call.emit("Where", [mask, x, call.number(0, x)])]


def _identity_like(call: Call) -> list[Value]:
    """Ones on a diagonal of a matrix."""
    x = call.value()
    check_rank(x.type, 2, 2)
    dtype = call.builder.kept(call.attribute("dtype", x.type.dtype))
    rows, columns = map(int, x.shape)
    k = call.attribute("k", 0)
    if not -(1 << 40) < k < 1 << 40:
        return [call.builder.filled(np.zeros((), dtype.numpy), x.shape)]
    return [call.fold(lambda: np.eye(rows, columns, k, dtype.numpy), (rows, columns), dtype)]


def _determinant(call: Call) -> list[Value]:
    """Of matrices of up to 4 x 4, by their first rows."""
    x = floating(call)
    check_rank(x.type, 2, MAX_RANK)
    extent = x.shape[-1]
    if x.shape[-2] != extent or not 1 <= extent <= MOST_SQUARE:
        raise UnsupportedError(
            f"input 0 is {x.type}; expected square matrices of 1 to {MOST_SQUARE} rows"
        )
    size, rank = int(extent), len(x.shape)

    def element(row: int, column: int) -> Value:
        sizes, zeros = (*x.shape[:-2], 1, 1), (0,) * (rank - 2)
        starts, steps = (*zeros, row, column), (1,) * rank
        return call.emit("Slice", [x], starts=starts, steps=steps, sizes=sizes)

    def minor(row: int, columns: tuple[int, ...]) -> Value:
        """Of the rows from one on and some columns."""
        total = None
        for place, column in enumerate(columns):
            others = columns[:place] + columns[place + 1 :]
            term = element(row, column)
            if others:
                term = call.emit("Mul", [term, minor(row + 1, others)])
            op = "Sub" if place % 2 else "Add"
            total = term if total is None else call.emit(op, [total, term])
        assert total is not None, "there are columns"
        return total

    return [call.reshape(minor(0, tuple(range(size))), x.shape[:-2])]


RULES: dict[str, Rule] = {
    "OneHot": Rule(_one_hot, {"axis": "int"}, 3, 3, (0, 2), since=9),
    "Det": Rule(_determinant, since=11),
    "Trilu": Rule(_triangle, {"upper": "int"}, 1, 2, since=14),
    "EyeLike": Rule(_identity_like, {"dtype": "dtype", "k": "int"}, knows_shape=True, since=9),
}

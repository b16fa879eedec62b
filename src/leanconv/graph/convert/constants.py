"""Constants, shapes as values, and patterns of matrices: ones where a label is, halves, diagonals.

What follows from shapes and constants is computed at load and never at run time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.convert.elementwise import floating
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.convert.shapes import counted
from leanconv.graph.ops.base import MAX_RANK, Array, check_rank, integers
from leanconv.graph.value import Value
from leanconv.symbolic import Symbol
from leanconv.types import BOOL, FLOAT16, FLOAT32, FLOAT64, INT32, INT64

MOST_SQUARE = 4  # rows of a matrix whose determinant is written out


def _constant(call: Call) -> list[Value]:
    held = call.node.attributes
    if len(held) != 1:
        raise ModelError(f"got attributes {sorted(held)}; expected one of the forms of a constant")
    name, value = next(iter(held.items()))
    if name == "value_float" or name == "value_floats":
        value = np.asarray(value, dtype=np.float32)
    elif name not in ("value", "sparse_value"):
        value = np.asarray(value, dtype=np.int64)
    return [call.builder.constant(value)]


def _constant_of_shape(call: Call) -> list[Value]:
    held = call.attribute("value", np.zeros(1, np.float32))
    if held.size != 1:
        raise ModelError(f"attribute value has {held.size} elements; expected one")
    value = np.asarray(call.builder.constant(held).array)
    return [call.builder.filled(value, call.integers(0))]


def _shape(call: Call) -> list[Value]:
    shape = call.value().shape
    start, end = call.attribute("start", 0), call.attribute("end", None)
    return [call.builder.constant(integers(shape[start:end]))]


def _size(call: Call) -> list[Value]:
    return [call.builder.constant(integers([call.value().type.elements]).reshape(()))]


# Floats that are whole numbers below this are exact in float32, the others in float64.
_EXACT = {4: 1 << 24, 8: 1 << 53}


def _range(call: Call) -> list[Value]:
    open_range = _open_range(call)
    if open_range is not None:
        return [open_range]
    start, limit, delta = (call.scalar(index) for index in range(3))
    dtypes = {call.value(index).type.dtype for index in range(3)}
    dtype = call.value(0).type.dtype
    if len(dtypes) > 1 or not (dtype.is_integer or dtype.is_float):
        raise ModelError(f"got numbers of {', '.join(sorted(dtypes))}; expected one numeric dtype")
    if dtype == FLOAT16 and call.opset >= 27:
        raise UnsupportedError("a range of float16 is not supported; expected float32 or integers")
    finite = all(math.isfinite(number) for number in (start, limit, delta))
    if delta == 0 or not finite:
        raise ModelError(f"got start {start}, limit {limit} and delta {delta}; expected a range")
    if isinstance(start, int):
        count = max(-((start - limit) // delta), 0)
    else:
        steps = (limit - start) / delta
        count = max(math.ceil(steps), 0) if math.isfinite(steps) else 1 << 60

    def made() -> Array:
        numbers = np.arange(count, dtype=dtype.numpy)
        numbers *= delta
        numbers += start
        return numbers

    return [call.fold(made, (count,), dtype)]


def _open_range(call: Call) -> Value | None:
    """A range whose limit is an extent that is open, computed for each size; None for others."""
    limit = call.with_inputs([call.builder.cast_from(call.value(1))]).value()
    dtype = call.value(0).type.dtype
    dtypes = {call.value(index).type.dtype for index in range(3)}
    if not limit.is_known or limit.type.elements != 1 or len(dtypes) > 1:
        return None
    last = limit.array.reshape(-1)[0] if limit.array is not None else None
    if not isinstance(last, Symbol) or dtype not in (FLOAT32, FLOAT64, INT32, INT64):
        return None
    numbers = [call.scalar(index) for index in (0, 2)]
    if not all(float(number).is_integer() for number in numbers) or not numbers[1]:
        return None
    start, delta = map(int, numbers)
    if dtype.is_float and not (abs(start) < _EXACT[dtype.bytes] and last < _EXACT[dtype.bytes]):
        return None
    count = last - start if delta == 1 else -((start - last) // delta)
    if count < 1:
        return None
    one = call.constant_of(np.ones((1,), dtype))
    ones = call.emit("Expand", [one], shape=(count,))
    steps = call.emit("CumSum", [ones], axis=0, exclusive=True, reverse=False)
    scaled = call.emit("Mul", [steps, call.number(delta, ones)])
    return call.emit("Add", [scaled, call.number(start, ones)])


def _fold_rule(
    convert: Callable[[Call], list[Value]], inputs: int, since: int = 1, **kinds: str
) -> Rule:
    return Rule(convert, kinds, inputs, inputs, running=(), since=since)


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
    indices = call.cast(indices, INT64)
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
    """Expand determinants of matrices of up to 4 x 4 by their first rows."""
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
        """Return the determinants of the rows from one on and some columns."""
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
    "Constant": _fold_rule(
        _constant,
        0,
        value="tensor",
        sparse_value="sparse tensor",
        value_float="float",
        value_floats="floats",
        value_int="int",
        value_ints="ints",
    ),
    "ConstantOfShape": _fold_rule(_constant_of_shape, 1, since=9, value="tensor"),
    "Shape": Rule(_shape, {"start": "int", "end": "int"}, knows_shape=True, narrow=True),
    "Size": Rule(_size, knows_shape=True, narrow=True),
    "Range": _fold_rule(_range, 3, since=11, stash_type="int"),
    "OneHot": Rule(_one_hot, {"axis": "int"}, 3, 3, (0, 2), since=9),
    "Det": Rule(_determinant, since=11),
    "Trilu": Rule(_triangle, {"upper": "int"}, 1, 2, since=14, moves=True),
    "EyeLike": Rule(_identity_like, {"dtype": "dtype", "k": "int"}, knows_shape=True, since=9),
}

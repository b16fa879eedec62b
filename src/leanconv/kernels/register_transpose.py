"""Transposes of small rectangles in vector registers."""

from __future__ import annotations

from leanconv.codegen import shuffles
from leanconv.codegen.emitter import Function, Value, element_of, lanes_of, vector


def power_below(count: int, most: int) -> int:
    """The largest power of two that is neither above `count` nor above the power of two `most`."""
    power = most
    while power > count:
        power //= 2
    return power


def transpose(e: Function, rows: list[Value], count: int) -> list[Value]:
    """Transpose `rows` (r vectors of w lanes, both powers of two); only `count` columns are made.

    Rows of fewer lanes than there are rows, and fewer rows than lanes, are filled up with lanes
    that nobody reads.

    Returns:
        `count` vectors of r lanes: column `i` holds lane `i` of every row.
    """
    r, w, element = len(rows), lanes_of(rows[0].kind), element_of(rows[0].kind)
    if r == 1:
        return [e.extract(rows[0], i) for i in range(count)]
    size = max(r, w)
    if w == 1:
        wide = e.poison(vector(element, r))
        for i, row in enumerate(rows):
            wide = e.insert(wide, row, i)
        return [wide]
    if w < size:
        rows = [e.shuffle(row, None, [*range(w), *[-1] * (size - w)]) for row in rows]
    rows = rows + [e.poison(vector(element, size))] * (size - r)
    columns = shuffles.transpose(e, rows)[:count]
    return columns if r == size else [e.shuffle(column, None, range(r)) for column in columns]

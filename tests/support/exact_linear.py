"""Matrices and linear programs applied to numbers, without emitted code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from leanconv.winograd.matrices import Matrix, Row
from leanconv.winograd.program import LinearProgram


def times(matrix: Matrix, vector: Sequence[Fraction]) -> Row:
    """Return the matrix times a vector, exactly."""
    return tuple(
        sum((c * v for c, v in zip(row, vector, strict=True)), Fraction(0)) for row in matrix
    )


def evaluate(
    program: LinearProgram, values: Sequence[Any], convert: Callable[[Fraction], Any] = Fraction
) -> list[Any]:
    """Run a program.

    Args:
        program: what `compile_matrix` returned.
        values: one for each input: anything with `+`, `-` and `*`, NumPy arrays included.
        convert: makes a constant a factor for them, such as `numpy.float32`.

    Returns:
        One value for each output; `convert(0)` where it is always zero.
    """
    assert len(values) == program.inputs
    known = list(values)
    for op in program.ops:
        a, b = known[op.a], known[op.b]
        if op.kind == "add":
            known.append(a + b)
        elif op.kind == "sub":
            known.append(a - b)
        elif op.kind == "mul":
            known.append(convert(op.constant) * a)
        elif op.kind == "neg":
            known.append(-a)
        elif op.kind == "fma":
            known.append(convert(op.constant) * a + b)
        else:
            known.append(convert(op.constant) * a - b)
    return [convert(Fraction(0)) if value is None else known[value] for value in program.outputs]

"""Straight-line programs equal their matrices and are as short as expected."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leanconv.errors import SpecError
from leanconv.winograd.matrices import Matrix, balance, transform
from leanconv.winograd.program import LinearProgram, Op, compile_matrix
from support.exact_linear import evaluate
from support.published import F23_POINTS, F43_POINTS, rationals


def matrix_of(program: LinearProgram) -> Matrix:
    """Run the program on every unit vector: what it computes, exactly."""
    columns = []
    for k in range(program.inputs):
        unit = [Fraction(int(i == k)) for i in range(program.inputs)]
        columns.append(evaluate(program, unit))
    return tuple(zip(*columns, strict=True))


def check_form(program: LinearProgram) -> None:
    for place, op in enumerate(program.ops):
        assert 0 <= op.a < program.inputs + place
        assert 0 <= op.b < program.inputs + place
        if op.kind in ("add", "sub"):
            assert op.constant == 1
        elif op.kind == "mul":
            assert op.a == op.b
            assert op.constant not in (0, 1)
        else:
            assert op.constant not in (0, 1, -1)
    assert len(set(program.ops)) == len(program.ops)
    read = {v for op in program.ops for v in (op.a, op.b)} | set(program.outputs)
    assert set(range(program.inputs, program.inputs + len(program.ops))) <= read


# m, r: ops of B^T, of A^T; the even/odd factorisation by hand gives the same.
OPS = {
    (2, 3): (4, 4),
    (4, 3): (12, 12),
    (6, 3): (24, 20),
    (5, 3): (21, 20),
    (4, 4): (21, 17),
    (4, 5): (24, 16),
    (7, 3): (36, 35),
    (3, 3): (10, 9),
    (5, 5): (36, 27),
    (8, 3): (40, 40),
    (14, 3): (112, 100),
}


@pytest.mark.parametrize(("m", "r"), OPS)
def test_op_counts(m: int, r: int) -> None:
    made = transform(m, r)
    programs = compile_matrix(made.bt), compile_matrix(made.at)
    assert tuple(len(program.ops) for program in programs) == OPS[m, r]
    for program, matrix in zip(programs, (made.bt, made.at), strict=True):
        assert matrix_of(program) == matrix
        check_form(program)


@pytest.mark.parametrize("m", range(1, 11))
@pytest.mark.parametrize("r", range(1, 8))
def test_never_longer_than_pairs_by_hand(m: int, r: int) -> None:
    made = transform(m, r)
    if m == 1 or r == 1:
        assert len(compile_matrix(made.bt).ops) == 0
        return
    pairs, zero = divmod(len(made.points), 2)
    assert len(compile_matrix(made.bt).ops) <= 2 * pairs**2 + pairs * (1 + zero)
    # Sums and differences, then each row: infinity (the last) or zero (the first) starts a sum.
    one = any(point == 1 for point in made.points)
    inner = sum(pairs if one is False else pairs - 1 for _ in range(1, m - 1))
    assert len(compile_matrix(made.at).ops) <= 2 * pairs + (pairs - 1 + zero) + inner + pairs


@pytest.mark.parametrize("points", [F23_POINTS, F43_POINTS, "0 1 -1 1/2 -1/2 -2", "3 1 -1 -3"])
def test_other_points(points: str) -> None:
    values = rationals(points)
    for made in (transform(len(values) - 1, 3, values), transform(2, len(values), values)):
        for matrix in (made.at, made.g, made.bt, balance(made).bt, balance(made).at):
            program = compile_matrix(matrix)
            assert matrix_of(program) == matrix
            check_form(program)
            assert len(program.ops) <= sum(sum(map(bool, row)) for row in matrix)


def test_copies_negations_and_zeros() -> None:
    rows = ((0, 0, 0), (0, 1, 0), (-1, 0, 0), (0, -1, -1), (2, 0, -1), (0, 0, 3))
    matrix = tuple(tuple(map(Fraction, row)) for row in rows)
    program = compile_matrix(matrix)
    assert matrix_of(program) == matrix
    assert program.outputs[:2] == (None, 1)
    assert program.ops == (
        Op("mul", 0, 0, Fraction(-1)),
        Op("add", 1, 2),
        Op("mul", 4, 4, Fraction(-1)),
        Op("fms", 0, 2, Fraction(2)),
        Op("mul", 2, 2, Fraction(3)),
    )


def test_rows_that_are_alike_are_computed_once() -> None:
    matrix = tuple(tuple(map(Fraction, row)) for row in ((1, 2, 0), (1, 2, 0), (1, 2, 3)))
    program = compile_matrix(matrix)
    assert len(program.ops) == 2
    assert program.outputs[0] == program.outputs[1]


def peak_values(program: LinearProgram) -> int:
    """Most values alive at once if inputs are loaded at first use and outputs stored at once.

    A result may take the register of an operand that dies. An output is stored when it is
    made, and stays alive only for other ops that read it.
    """
    last_use: dict[int, int] = {}
    for place, op in enumerate(program.ops):
        last_use[op.a] = last_use[op.b] = place
    alive: set[int] = set()
    peak = 0
    for place, op in enumerate(program.ops):
        alive |= {op.a, op.b}
        peak = max(peak, len(alive))
        alive = {value for value in alive if last_use[value] > place}
        if program.inputs + place in last_use:
            alive.add(program.inputs + place)
        peak = max(peak, len(alive) + (program.inputs + place not in last_use))
    reads = program.ops or any(output is not None for output in program.outputs)
    return max(peak, 1 if reads else 0)


def test_peak_values() -> None:
    ones = compile_matrix(((Fraction(1),) * 9,))
    assert peak_values(ones) == 2  # a running sum and the next input
    assert peak_values(compile_matrix(((Fraction(1), Fraction(0)),))) == 1
    assert peak_values(compile_matrix(((Fraction(0),),))) == 0
    for m, r in [(6, 3), (8, 3)]:  # room for constants beside them in 32 registers
        made = transform(m, r)
        assert peak_values(compile_matrix(made.bt)) <= 12
        assert peak_values(compile_matrix(made.at)) <= 14


def test_runs_on_arrays() -> None:
    made = transform(4, 3)
    x = np.random.default_rng(0).standard_normal((6, 5))
    y = np.stack(evaluate(compile_matrix(made.bt), list(x), float))
    np.testing.assert_allclose(y, np.array(made.bt, np.float64) @ x, atol=1e-14)


def test_nonsense_is_refused() -> None:
    with pytest.raises(SpecError, match="rows of one length"):
        compile_matrix(((Fraction(1),), (Fraction(1), Fraction(2))))
    with pytest.raises(SpecError, match="rows of one length"):
        compile_matrix(())


VALUES = ("0", "0", "1", "-1", "2", "-2", "1/2", "-1/2", "3", "5/4")
coefficients = st.sampled_from([Fraction(value) for value in VALUES])
matrices = st.integers(1, 7).flatmap(
    lambda width: st.lists(st.tuples(*[coefficients] * width), min_size=1, max_size=7).map(tuple)
)


@given(matrices)
def test_any_matrix(matrix: Matrix) -> None:
    program = compile_matrix(matrix)
    assert matrix_of(program) == matrix
    check_form(program)
    # Plain sums of each row, negations included, are never shorter.
    assert len(program.ops) <= sum(
        sum(map(bool, row)) - (1 in row) if any(row) else 0 for row in matrix
    )

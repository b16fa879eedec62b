"""F(m, r) is exact, follows the documented conventions, and refuses nonsense."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from leanconv.errors import SpecError
from leanconv.winograd.matrices import Transform, polynomial, transform, verify
from support.exact_linear import times
from support.float_conv import direct, winograd
from support.published import (
    F23_AT,
    F23_BT,
    F23_G,
    F23_POINTS,
    F43_AT,
    F43_BT,
    F43_G,
    F43_POINTS,
    rationals,
)


def check_fir(made: Transform, seed: int) -> None:
    generator = random.Random(seed)

    def draw(count: int) -> list[Fraction]:
        return [Fraction(generator.randint(-99, 99), generator.randint(1, 9)) for _ in range(count)]

    d, g = draw(made.alpha), draw(made.r)
    expected = tuple(sum(g[k] * d[i + k] for k in range(made.r)) for i in range(made.m))
    products = [a * b for a, b in zip(times(made.g, g), times(made.bt, d), strict=True)]
    assert times(made.at, products) == expected


@pytest.mark.parametrize("m", range(1, 9))
@pytest.mark.parametrize("r", range(1, 8))
def test_equals_the_direct_filter_exactly(m: int, r: int) -> None:
    made = transform(m, r)
    assert (made.m, made.r, made.alpha) == (m, r, m + r - 1)
    assert [len(made.at), len(made.g), len(made.bt)] == [m, made.alpha, made.alpha]
    assert {len(row) for row in made.at + made.bt} == {made.alpha}
    assert {len(row) for row in made.g} == {r}
    verify(made)
    check_fir(made, seed=100 * m + r)


@pytest.mark.parametrize(
    ("m", "r", "points"),
    [(1, 3, "0 1"), (3, 1, "5 -1/7"), (2, 2, "3 8"), (4, 3, "1 2 3 4 5"), (3, 5, "-1 0 1 2 1/2 7")],
)
def test_any_different_points_serve(m: int, r: int, points: str) -> None:
    check_fir(transform(m, r, rationals(points)), seed=1)


def test_large_ones_are_exact_too() -> None:
    check_fir(transform(20, 3), seed=2)
    check_fir(transform(11, 11), seed=3)


def test_f43_is_the_papers() -> None:
    made = transform(4, 3, rationals(F43_POINTS))
    assert made.at == F43_AT
    assert made.g == tuple(map(rationals, F43_G))
    assert made.bt == F43_BT


def test_f23_is_the_papers_but_for_the_signs_of_the_last_point() -> None:
    made = transform(2, 3, rationals(F23_POINTS))
    assert made.g == tuple(map(rationals, F23_G))
    assert made.bt[:-1] == F23_BT[:-1]
    assert made.bt[-1] == tuple(-value for value in F23_BT[-1])
    assert [row[:-1] for row in made.at] == [row[:-1] for row in F23_AT]
    assert [row[-1] for row in made.at] == [-row[-1] for row in F23_AT]
    theirs = replace(
        made,
        at=tuple(tuple(map(Fraction, row)) for row in F23_AT),
        bt=tuple(tuple(map(Fraction, row)) for row in F23_BT),
    )
    verify(theirs)


def test_with_one_tap_or_one_output_nothing_is_transformed() -> None:
    taps = transform(5, 1)
    assert taps.at == taps.bt == tuple(tuple(int(i == j) for j in range(5)) for i in range(5))
    assert taps.g == ((1,),) * 5
    outputs = transform(1, 4)
    assert outputs.g == outputs.bt == tuple(tuple(int(i == j) for j in range(4)) for i in range(4))
    assert outputs.at == ((1, 1, 1, 1),)
    assert taps.points == outputs.points == ()
    assert transform(1, 1).at == transform(1, 1).g == transform(1, 1).bt == ((1,),)


def test_every_row_of_bt_has_a_factor_of_one_in_front_of_its_highest_input() -> None:
    for m, r in [(2, 3), (3, 3), (4, 3), (5, 3), (6, 3), (7, 5)]:
        for row in transform(m, r).bt:
            assert abs([value for value in row if value][-1]) == 1


def test_infinity_leaves_out_filters_with_a_tap_fewer() -> None:
    # Phases of strided kernels: the last row of G reads the last tap only.
    for m, r in [(2, 3), (4, 4), (5, 3)]:
        made = transform(m, r)
        assert made.g[-1] == (*(0,) * (r - 1), 1)


def test_polynomial() -> None:
    assert polynomial([]) == (1,)
    assert polynomial(rationals("1 -1 2")) == (2, -1, -2, 1)


@pytest.mark.parametrize(
    ("m", "r", "points", "message"),
    [
        (0, 3, None, "m = 0"),
        (2, -1, None, "r = -1"),
        (True, 3, None, "m = True"),
        (2, 3, (0, 1), "takes 3 finite points.*got 2"),
        (2, 3, (0, 1, 1), "differ.*0, 1, 1"),
        (2, 3, (0, 1, "x"), "not all rational"),
        (2, 3, (0, 1, "1/0"), "not all rational"),
        (2, 3, (0, 1, "1e1000000000"), "not all rational"),  # whose zeros nobody can write out
        (2, 3, (0, 1, float("nan")), "not all rational"),
        (2, 3, (0, 1, float("inf")), "not all rational"),
    ],
)
def test_nonsense_is_refused(m: int, r: int, points: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        transform(m, r, points)  # type: ignore[arg-type]


def test_the_check_sees_a_wrong_entry() -> None:
    made = transform(4, 3)
    for name in ("at", "g", "bt"):
        matrix = getattr(made, name)
        for i, row in enumerate(matrix):
            for j in range(len(row)):
                wrong = (*row[:j], row[j] + Fraction(1, 1000), *row[j + 1 :])
                broken = replace(made, **{name: (*matrix[:i], wrong, *matrix[i + 1 :])})
                with pytest.raises(AssertionError, match="is wrong at"):
                    verify(broken)


@pytest.mark.parametrize(("m", "n", "r", "s"), [(2, 2, 3, 3), (4, 6, 3, 3), (5, 2, 2, 5)])
def test_nested_in_two_dimensions(m: int, n: int, r: int, s: int) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((5, 17, 23))
    w = generator.standard_normal((3, 5, r, s))
    y = winograd(x, w, transform(m, r), transform(n, s))
    np.testing.assert_allclose(y, direct(x, w), rtol=0, atol=1e-11)


def test_one_by_n_kernels_take_one_transform() -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((4, 9, 15))
    w = generator.standard_normal((2, 4, 1, 7))
    y = winograd(x, w, transform(1, 1), transform(3, 7))
    np.testing.assert_allclose(y, direct(x, w), rtol=0, atol=1e-11)

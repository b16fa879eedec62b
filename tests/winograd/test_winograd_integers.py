"""F(m, r) in integers: the identity holds, operands have 16 bits; the page has the code's table."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from leanconv.reference.int8_winograd import F23, F43
from leanconv.winograd.matrices import Matrix
from leanconv.winograd.variants import (
    IntegerTransform,
    division,
    integer_transform,
    narrowed_integers,
    operand_bounds,
    operands_fit,
)

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "algorithms.md"
_TABLE = _PAGE.read_text(encoding="utf-8").split("<!-- bits:")[1].split("<!-- end of bits")[0]
ROWS = re.findall(
    r"^\| F\((\d)x(\d), (\d)x(\d)\) \| (\S+) \| (\d+) \| (\d+) \| (\d+) \| (\S+) \| (\S+) \|$",
    _TABLE,
    re.MULTILINE,
)
FORMS = [(m, r) for m, r in itertools.product(range(2, 7), range(2, 6)) if m + r <= 7]


def made(m: int, r: int) -> IntegerTransform:
    found = integer_transform(m, r)
    assert found is not None
    return found


def numbers(matrix: Matrix) -> np.ndarray:
    return np.array([[int(c) for c in row] for row in matrix], np.int64)


@pytest.mark.parametrize(("m", "r"), FORMS)
def test_outputs_times_the_scale_are_found_with_one_u_for_tiles_of_all_widths(
    m: int, r: int
) -> None:
    rng, whole = np.random.default_rng(m * r), made(m, r)
    d, g = rng.integers(-128, 256, whole.exact.alpha), rng.integers(-128, 128, r)
    u = numbers(whole.exact.g) @ g
    for outputs in range(1, m + 1):
        narrow = narrowed_integers(whole, outputs)
        assert narrow is not None
        at, bt, skipped = numbers(narrow.exact.at), numbers(narrow.exact.bt), m - outputs
        v = bt @ d[: outputs + r - 1]
        plain = [int(d[i : i + r] @ g) for i in range(outputs)]
        assert (at @ (v * u[skipped:])).tolist() == [whole.scale * y for y in plain]


@pytest.mark.parametrize(("m", "form"), [(2, F23), (4, F43)])
def test_forms_of_ncnn_have_the_same_operands(m: int, form: object) -> None:
    assert isinstance(form, type(F23))
    exact = made(m, 3).exact
    ours = {tuple(map(abs, row)) for row in numbers(exact.bt).tolist()}
    assert ours == {tuple(map(abs, row)) for row in form.bt.tolist()}


def test_the_largest_operands_are_reached_and_bounded() -> None:
    for m, r in FORMS:
        exact = made(m, r).exact
        bt, g = numbers(exact.bt), numbers(exact.g)
        u, *ends = operand_bounds(exact, exact, 0, 255)
        assert u == 128 * max(np.abs(np.outer(a, b)).sum() for a in g for b in g)
        reached = [np.outer(a, b) for a in bt for b in bt]
        sides = (
            (255 * np.where(p > 0, p, 0).sum(), -255 * np.where(p < 0, p, 0).sum()) for p in reached
        )
        assert max(map(abs, ends)) == max(max(pair) for pair in sides)


def test_products_of_more_than_16_bits_are_told() -> None:
    four, five = made(4, 3).exact, made(2, 5).exact
    one = made(1, 5).exact
    assert operands_fit(four, four, 0, 255)
    assert operands_fit(four, four, -128, 127)
    assert not operands_fit(five, five, 0, 255)
    assert operands_fit(five, one, 0, 255)
    assert not operands_fit(made(3, 4).exact, made(3, 4).exact, 0, 255)
    assert integer_transform(5, 3) is None


@pytest.mark.parametrize("scale", [1, 2, 4, 6, 36, 48, 144, 576])
def test_the_division_is_exact_for_numbers_of_its_bits(scale: int) -> None:
    how, rng = division(scale), np.random.default_rng(scale)
    most = 2 ** (how.bits - 1)
    y = np.concatenate([rng.integers(-most, most, 1000), [-most, most - 1, 0, -1]])
    wrapped = (y * scale * how.inverse).astype(np.uint64).astype(np.uint32).view(np.int32)
    assert np.array_equal(wrapped >> how.shift, y)


def test_the_page_has_rows() -> None:
    assert len(ROWS) == 5


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "F({}x{}, {}x{})".format(*row))
def test_the_table_of_bits_is_that_of_the_code(row: tuple[str, ...]) -> None:
    m_h, m_w, r_h, r_w = map(int, row[:4])
    height, width = made(m_h, r_h), made(m_w, r_w)
    scale = height.scale * width.scale
    how = division(scale)
    products = height.exact.alpha * width.exact.alpha / (m_h * m_w)
    u, *ends = operand_bounds(height.exact, width.exact, 0, 255)
    v = max(map(abs, ends))
    told = (f"{products:.2f}", str(scale), str(how.shift), str(how.bits), f"{int(u):,}", f"{v:,}")
    assert row[4:] == told

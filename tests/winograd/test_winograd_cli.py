"""`leanconv winograd`."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from leanconv.cli.main import main
from leanconv.winograd.matrices import balance, transform


def test_prints_the_matrices_and_what_they_save(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["winograd", "4", "3", "--points=0,1,-1,2,-2"]) == 0
    out = capsys.readouterr().out
    assert "points           0, 1, -1, 2, -2, infinity" in out
    assert "gamma^2          10.77" in out
    assert "36 instead of 144 in 2-D (4.00x)" in out
    assert "A^T (4 x 6)" in out
    assert "  0  1  -1  8  -8  1" in out
    assert "  1/24  -1/12   1/6" in out
    assert "  0   4   0  -5  0  1" in out


def test_the_points_that_are_printed_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["winograd", "4", "3"]) == 0
    out = capsys.readouterr().out
    (points,) = (line[17:] for line in out.splitlines() if line.startswith("points"))
    assert points.endswith(", infinity")
    for text in (points, points.replace(" ", "")):
        assert main(["winograd", "4", "3", f"--points={text}"]) == 0
        assert capsys.readouterr().out == out
    assert main(["winograd", "4", "3", "--points=infinity,0,1,-1,2"]) == 2
    assert "expected integers" in capsys.readouterr().err
    assert "rounding of transforms and of sums of 64 products; direct sums 576" in out


def test_json_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["winograd", "5", "3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    made = transform(5, 3)
    for name in ("at", "g", "bt"):
        rows = tuple(tuple(Fraction(cell) for cell in row) for row in document[name])
        assert rows == getattr(made, name)
    assert document["points"][-1] == "infinity"
    assert document["alpha"] == document["multiplications"]["1d"] == 7
    assert document["multiplications"]["2d_saving"] == pytest.approx(225 / 49)
    assert document["gamma_squared"] == pytest.approx(9.53, abs=0.01)
    assert document["operations"]["bt"] == 21


def test_balanced(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["winograd", "6", "3", "--balance", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["g"] == [[str(v) for v in row] for row in balance(transform(6, 3)).g]


def test_without_a_transform(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["winograd", "3", "1"]) == 0
    assert "none needed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["40", "40"], "79 points; expected M + R - 1 of at most 64"),
        (["2", "3", "--points=0,1"], "takes 3 finite points"),
        (["2", "3", "--points=0,1,pi"], "not all rational"),
    ],
)
def test_nonsense_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["winograd", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_sizes_below_one_are_a_wrong_command_line() -> None:
    assert main(["winograd", "0", "3"]) == 2


@pytest.mark.parametrize(("m", "r", "useless"), [(4, 3, False), (6, 5, False), (20, 9, True)])
def test_what_is_of_no_use_in_float32_is_called_so(
    capsys: pytest.CaptureFixture[str], m: int, r: int, useless: bool
) -> None:
    assert main(["winograd", str(m), str(r)]) == 0
    assert ("of no use in float32" in capsys.readouterr().out) is useless

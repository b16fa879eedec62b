"""Fitting a record of costs: numbers that made the times are found again, and nothing below 0."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fit_costs
from leanconv.errors import InputError
from leanconv.target import preset

_LAYERS = (
    "ic64ih56iw56oc64oh56ow56kh3ph1",
    "ic256ih14iw14oc64oh14ow14kh1",
    "ic3ih64iw64oc32oh64ow64kh3ph1",
    "ic32ih28iw28oc32oh28ow28kh5ph2",
)


def test_numbers_that_made_the_times_are_found(tmp_path: Path) -> None:
    target = preset("znver4")
    names = ["accumulator", "winograd_input", "winograd_output"]
    made = fit_costs.scaled(target.costs, {"accumulator": 1.5, "winograd_input": 1.4})
    truth = replace(target, costs=made)
    rows = [fit_costs.Row(t, a, 1.0) for t in _LAYERS for a in ("direct", "winograd")]
    times = fit_costs.estimates(rows, truth)
    rows = [replace(row, ns=ns) for row, ns in zip(rows, times, strict=True)]
    fit_costs.write(tmp_path / "a.csv", rows)
    rows = fit_costs.read(tmp_path / "a.csv")
    found = fit_costs.fitted(rows, target, names)
    before, after = (
        np.abs(fit_costs.estimates(rows, t) / times - 1).max() for t in (target, found)
    )
    assert after < 0.02 < 0.05 < before
    assert found.costs.accumulator == pytest.approx(made.accumulator, rel=0.1)
    assert fit_costs.residuals(rows, found)[-1][:2] == ("all", "8")


def test_least_squares_gives_nothing_below_zero() -> None:
    a = np.array([[1.0, 1.0], [1.0, 2.0], [0.0, 1.0]])
    np.testing.assert_allclose(fit_costs.least_squares(a, a @ [2.0, 3.0]), [2.0, 3.0], rtol=1e-6)
    assert (fit_costs.least_squares(a, np.array([3.0, 1.0, -2.0])) >= 0).all()


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    for name in ("b.csv", "absent.csv"):
        with pytest.raises(InputError, match="expected"):
            fit_costs.read(tmp_path / name)

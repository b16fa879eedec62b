"""Random problems of the gradient of weights, and those that other libraries got wrong.

A few of those that `tests/conformance/gradients.py` runs, by every method.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leanconv.algorithms import WEIGHT_GRADIENTS
from leanconv.spec import ConvSpec
from support import gradient_calls, gradient_draws, gradients


@pytest.mark.parametrize("name", WEIGHT_GRADIENTS)
def test_what_others_got_wrong(name: str) -> None:
    done = [gradient_draws.check(found, name) for found in gradient_draws.reported()]
    assert done


@pytest.mark.parametrize("name", WEIGHT_GRADIENTS)
def test_drawn(name: str) -> None:
    for found in gradient_draws.drawn(seed=1, count=24):
        gradient_draws.check(found, name)


@pytest.mark.parametrize("name", gradient_calls.OF_DATA)
def test_drawn_of_data(name: str) -> None:
    for found in gradient_draws.drawn(seed=3, count=8):
        gradient_calls.check_data(found, name, threads=(1, 2))


def test_sums_that_cancel_err_by_the_roundings_of_their_terms() -> None:
    nothing, squares = np.zeros(1), np.array([2.0])
    assert gradient_draws.error_of(np.array([1e-7]), nothing, squares) < 1e-7
    assert gradient_draws.error_of(np.array([1.0]), nothing, nothing) == 1


def test_draws_are_the_same_everywhere_and_of_every_kind() -> None:
    specs = [found.spec for found in gradient_draws.drawn(seed=0, count=200)]
    assert specs[:40] == [found.spec for found in gradient_draws.drawn(seed=0, count=40)]
    assert {len(spec.size) for spec in specs} == {1, 2, 3}
    pads = [(each.pad_begin, each.size) for each in specs]
    assert any(pad > size for each in pads for pad, size in zip(*each, strict=True))
    assert any(spec.groups > 1 and spec.in_channels == spec.groups for spec in specs)
    assert any(max(spec.dilation) > 1 and max(spec.stride) > 1 for spec in specs)


def test_a_wrong_sum_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    (found, *_) = gradient_draws.drawn(seed=0, count=1)
    right = gradients.run

    def wrong(*given: object, threads: int = 1, **more: object) -> np.ndarray:
        dw = right(*given, threads=threads, **more)  # type: ignore[arg-type]
        dw.flat[-1] += threads > 1
        return dw

    monkeypatch.setattr(gradients, "run", wrong)
    with pytest.raises(AssertionError, match="threads"):
        gradient_draws.check(found, "naive")
    with pytest.raises(AssertionError, match="wrong"):
        gradient_draws.check(found, "naive", threads=(2,))


def test_smaller_problems_are_problems() -> None:
    spec = ConvSpec.parse("g2mb3ic4ih5oc6oh3kh3sh2ph1")
    found = list(gradient_draws.smaller(gradient_draws.Draw("it", spec, 0)))
    assert replace(spec, batch=1) in [each.spec for each in found]
    assert all(each.spec != spec and each.spec.flops > 0 for each in found)

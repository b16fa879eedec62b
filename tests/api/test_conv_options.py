"""`conv2d` takes what `plan_conv2d` takes, and means the same by it."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import leanconv as lc
from leanconv.api import kept_plans

random = np.random.default_rng(0)
X = random.standard_normal((2, 20, 17, 19)).astype("f4")
W = random.standard_normal((24, 20, 3, 3)).astype("f4")


def test_every_option_of_a_plan_is_one_of_a_convolution() -> None:
    planned = inspect.signature(lc.plan_conv2d).parameters
    convolved = inspect.signature(lc.conv2d).parameters
    assert set(planned) - set(convolved) == {"x_shape", "w_shape", "x_dtype", "progress"}
    assert set(convolved) - set(planned) == {"x"}
    for name in set(planned) & set(convolved) - {"residual", "w"}:
        assert convolved[name].default == planned[name].default, name


OPTIONS: list[dict[str, Any]] = [
    {},
    {"memory_limit": "32 KiB"},
    {"memory_limit": 20_000},
    {"max_error": 1e-3},
    {"max_error": 3e-7},
    {"algorithm": "im2col"},
    {"reproducible": True},
    {"reproducible": True, "threads": 1},
]


def outcome(call: Any) -> bytes | str:
    """The bits of a result, or the message of what is raised."""
    try:
        return np.asarray(call()).tobytes()
    except lc.LeanConvError as error:
        return str(error)


def test_options_mean_what_they_mean_to_a_plan() -> None:
    """Called in a row with one w: each has a plan of its own in the cache."""
    found = [outcome(lambda o=o: lc.conv2d(X, W, padding=1, **o)) for o in OPTIONS * 2]
    plans = [outcome(lambda o=o: lc.plan_conv2d(X.shape, W, padding=1, **o)(X)) for o in OPTIONS]
    assert found == plans * 2
    assert len(set(plans)) > 3


def test_a_limit_is_kept_though_a_plan_without_it_is_in_the_cache() -> None:
    y = lc.conv2d(X, W)
    with pytest.raises(lc.BudgetError, match="give memory_limit=") as found:
        lc.conv2d(X, W, memory_limit=1)
    with pytest.raises(lc.BudgetError, match="give max_error="):
        lc.conv2d(X, W, max_error=1e-12)
    least = found.value.smallest_bytes
    assert np.allclose(lc.conv2d(X, W, memory_limit=least), y, atol=1e-3)
    kept = [each for (each, _) in kept_plans.kept_plans()._plans.values()]
    assert any(each.plan.memory_bytes == least for each in kept)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"memory_limit": "much"}, "'much' is not a number of bytes"),
        ({"max_error": "1e-4"}, "max_error is '1e-4'; expected a positive number"),
        ({"tune": "no"}, "tune is 'no'; expected True or False"),
        ({"reproducible": 2.5}, "reproducible is 2.5; expected True or False"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_wrong_options_are_refused_on_every_device(
    options: dict[str, Any], what: str, device: str
) -> None:
    with pytest.raises(lc.SpecError, match=what):
        lc.conv2d(X, W, device=device, **options)
    with pytest.raises(lc.SpecError, match=what):
        lc.plan_conv2d(X.shape, W, device=device, **options)

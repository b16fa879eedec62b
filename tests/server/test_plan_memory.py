"""Plans of new shapes within a limit of bytes: what is counted, what goes, what is refused."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import leanconv as lc
from leanconv.errors import BudgetError
from leanconv.server.limits import BUSY, RefusedError
from leanconv.server.plans import Group, Plans, alike, comparison_bytes
from support.served import small_net


@pytest.fixture
def network(tmp_path: Path) -> lc.Network:
    """Of images whose width is open."""
    return lc.load(small_net(tmp_path / "wide.onnx", width="W"), threads=1, reproducible=True)


@pytest.fixture
def plans(network: lc.Network) -> Plans:
    """For batches of 1, 2 and 4."""
    return Plans(network, most=2, batch=4)


def plan(plans: Plans, width: int, limit: int | None = None, keep: bool = False) -> Group:
    wanted = plans.wanted([np.ones((1, 3, 8, width), np.float32)])
    return plans.plan(wanted, limit, keep)


def widths(plans: Plans) -> list[int]:
    return [group.smallest.inputs["x"].shape[3] for _, group in plans.groups()]


def test_an_evicted_shape_counts_until_nothing_holds_it(plans: Plans) -> None:
    held = plan(plans, 8)
    for width in (9, 10):
        plan(plans, width)
    assert widths(plans) == [9, 10]
    before = plans.held_bytes
    del held
    assert plans.held_bytes < before


def test_a_shape_waits_for_those_of_which_requests_are_queued(network: lc.Network) -> None:
    plans = Plans(network, most=2, batch=1)
    first = plan(plans, 2000)
    limit = plans.held_bytes + 50_000
    with pytest.raises(RefusedError, match="until requests for earlier ones") as caught:
        plan(plans, 2001, limit)
    assert caught.value.status == BUSY
    assert caught.value.retry_s == 1
    assert widths(plans) == []
    del first
    plan(plans, 2001, limit)
    assert widths(plans) == [2001]
    assert plans.held_bytes <= limit


def test_a_shape_that_cannot_fit_evicts_nothing(plans: Plans) -> None:
    plan(plans, 8, keep=True)
    plan(plans, 9)
    limit = plans.held_bytes + 100_000
    with pytest.raises(BudgetError):
        plan(plans, 200_000, limit)
    assert widths(plans) == [8, 9]


def test_comparing_images_counts(plans: Plans) -> None:
    """Batches whose images could not be compared within the limit are not planned."""
    group = plan(plans, 30_000)
    assert group.sizes == (1, 2, 4)
    one = group.smallest
    shapes = [(1, 3, 8, 30_000)]
    tracemalloc.start()
    try:
        assert alike(group.plans, shapes, plans.inputs)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= comparison_bytes(one, 4) + 100_000
    limit = plans.held_bytes + comparison_bytes(one, 2)
    del group
    assert plan(plans, 30_001, limit).sizes == (1, 2)

"""The clock and the speed-up of threads are plausible on any machine."""

from __future__ import annotations

import pytest

from leanconv.runtime.clock import cycles_per_second, speedup


def test_clock_is_that_of_a_processor() -> None:
    assert 2e8 < cycles_per_second() < 1e10
    assert cycles_per_second() == cycles_per_second()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_add_up_to_no_more_than_their_number(threads: int) -> None:
    # Disturbance while one thread was timed alone makes the ratio too large, but not for ever.
    least = min(speedup(threads) for _ in range(10))
    assert 0 < least < 1.3 * threads

"""The clock and the speed-up of threads are plausible on any machine."""

from __future__ import annotations

import pytest

from leanconv.codegen.host import host
from leanconv.runtime.calibration import chain_nanoseconds, speedup


def test_clock_is_that_of_a_processor() -> None:
    chain_ns = min(chain_nanoseconds() for _ in range(25))
    assert 2e8 < host().fma_latency / chain_ns * 1e9 < 1e10


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_add_up_to_no_more_than_their_number(threads: int) -> None:
    # Disturbance while one thread was timed alone makes the ratio too large, but not for ever.
    least = min(speedup(threads) for _ in range(10))
    assert 0 < least < 1.3 * threads

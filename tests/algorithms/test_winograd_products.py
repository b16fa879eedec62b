"""The products of a tile and channel, against published counts."""

from __future__ import annotations

import pytest

from leanconv.algorithms.winograd.reduction import Reduction

# What the plain sum multiplies, over what 2-D tiles of m = 2, 3, 4, 6 outputs do. (7, 2) at m = 3
# is (21 / 11)^2; other tables print 3.65.
SAVINGS = {
    (3, 1): (2.25, 3.24, 4.00, 5.06),
    (3, 2): (1.44, 1.65, 1.78, 1.92),
    (5, 2): (2.04, 2.78, 3.31, 4.00),
    (7, 2): (2.42, 3.64, 4.64, 6.10),
    (11, 4): (2.15, 3.02, 3.66, 4.53),
}


@pytest.mark.parametrize(("kernel", "stride"), SAVINGS)
def test_savings_of_strides_are_as_published(kernel: int, stride: int) -> None:
    """Phases share a transform, and the short ones leave the point at infinity out."""
    found = []
    for m in (2, 3, 4, 6):
        reduction = Reduction(8, 8, False, (kernel,) * 2, (stride,) * 2, (m, m), (0, 0))
        products = reduction.steps_of_points() / reduction.inputs
        found.append((m * kernel) ** 2 / products)
    assert found == [pytest.approx(value, abs=0.0051) for value in SAVINGS[kernel, stride]]

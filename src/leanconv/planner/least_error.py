"""The least `max_error` that some plan of a network keeps, to the last digit.

Which choices a layer has depends on the power of two below `max_error` (`layer_error`), and on
nothing else of it. So the least one is found in two steps: the least power above which some error
works, and between that power and the next one, where the choices stay the same, the least error of
a plan. Errors are whole numbers of units there (`error_units`). Below the least error everything is
refused: between the two powers no plan errs less, and between the next lower ones none works.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from leanconv.planner.node_costs import error_units, units_error
from leanconv.records import dataclass
from leanconv.types import DType

_MOST = 2.0**100  # an error that every plan keeps


class Plans(Protocol):
    """The plans for one power of two."""

    def least_units(self) -> int:
        """The least error of any plan, in units, whatever its bytes."""
        ...

    def keeps(self, max_error: float) -> bool:
        """Whether a plan keeps this error, and the limit of bytes if there is one."""
        ...


@dataclass(frozen=True)
class _Range:
    """The errors from one power of two up to the next one, and the plans for them."""

    low: float
    high: float
    plans: Plans

    def works(self) -> bool:
        """Whether some error of the range works."""
        return self.plans.keeps(math.nextafter(self.high, 0.0))

    def least(self, dtype: DType) -> float:
        """The least error of the range that works; some must."""
        units = self.plans.least_units()
        first = max(self.low, units_error(units, dtype))
        if self.plans.keeps(first):
            return first
        # The limit of bytes leaves the most accurate plans out.
        low = max(units, error_units(self.low, dtype, up=False))
        high = error_units(math.nextafter(self.high, 0.0), dtype, up=False)
        while high - low > 1:
            middle = (low + high) // 2
            if self.plans.keeps(units_error(middle, dtype)):
                high = middle
            else:
                low = middle
        return units_error(high, dtype)


def least_max_error(plans: Callable[[float], Plans], dtype: DType, guess: float) -> float | None:
    """Return the least `max_error` that some plan keeps, None if none keeps any.

    Args:
        plans: makes the plans for a `max_error`; those of one power of two are alike.
        dtype: of the network.
        guess: where the search begins; few powers are looked at if it is close.
    """
    first, last = math.frexp(dtype.roundoff)[1] - 1, 0  # the powers of two that are told apart

    def between(exponent: int) -> _Range:
        low = math.ldexp(1.0, exponent)
        return _Range(
            0.0 if exponent == first else low,
            _MOST if exponent == last else 2 * low,
            plans(low),
        )

    exponent = min(last, max(first, math.frexp(guess)[1] - 1))
    found = between(exponent)
    if not found.works():
        while exponent < last:
            exponent += 1
            found = between(exponent)
            if found.works():
                return found.least(dtype)
        return None
    while exponent > first:
        exponent -= 1
        below = between(exponent)
        if not below.works():
            break
        found = below
    return found.least(dtype)

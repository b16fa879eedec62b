"""Inputs whose values may decide what a network computes: a sampling rate, a size, a shape.

A branch, or a shape, that follows from them and from constants alone is known when the network is
bound to their values. Which inputs these are is found by binding without any values: what is needed
is named by a `NeedsInputsError`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from leanconv.errors import InputError
from leanconv.symbolic import plain
from leanconv.types import DType

MOST = 16  # elements: each combination of values has a plan of its own


class NeedsInputsError(InputError):
    """A network cannot be bound without the values of some inputs.

    Attributes:
        names: of these inputs.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.names = tuple(sorted(names))
        listed = ", ".join(map(repr, self.names))
        super().__init__(
            f"what is computed follows from the value of {listed}; expected it where others have "
            f"a shape: {{{self.names[0]!r}: np.array(…)}}"
        )


def is_small(shape: Sequence[object] | None, dtype: DType) -> bool:
    """Whether an input is a scalar or a short list of integers or bools.

    Args:
        shape: numbers, symbols; names or None for extents that are not known, which may be small.
        dtype: of its elements.
    """
    if shape is None or len(shape) > 1 or dtype.is_float or dtype.held != dtype:
        return False
    return all(not isinstance(number, int) or number <= MOST for number in map(plain, shape))

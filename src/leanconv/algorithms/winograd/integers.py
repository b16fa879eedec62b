"""Which integers Winograd takes, and with which tiles: exactly, or not at all.

What decides it are the sums of products: y, without its bias, has at most `Problem.sum_bits` bits,
found from the weights (`integer_sums`). Tiles whose division leaves fewer are left out.
"""

from __future__ import annotations

from functools import lru_cache

from leanconv.algorithms.problem import Problem
from leanconv.algorithms.winograd.pieces import is_cut
from leanconv.algorithms.winograd.shape import Pair
from leanconv.errors import SpecError
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOATS, INT8, INT16, INT32, UINT8, UINT16, Precision
from leanconv.winograd.integers import division, integer_transform, operands_fit

WHOLE = 1 << 30  # products of one partial sum: sums of integers are not cut

_STORED = (INT8, UINT8, INT16, UINT16, INT32, FLOAT32)
_MOST_OUTPUTS = 5  # of a tile along an axis


def takes_precision(precision: Precision) -> bool:
    """One float for everything; or bytes by int8, with sums in int32."""
    if precision.is_uniform:
        return precision.x in FLOATS
    integers = precision.x in (INT8, UINT8) and precision.w == INT8
    return integers and precision.accumulate == INT32 and precision.y in _STORED


def reject_integers(problem: Problem, target: Target, taps: Pair) -> str | None:
    """Why integers of a problem without depth cannot be computed; None if they can."""
    block = target.channel_block(problem.precision.x)
    if {problem.x.block, problem.y.block} != {block}:
        return f"integers that are not in blocks of {block} channels"
    if problem.epilogue.activation:
        return f"an activation of sums in {problem.precision.accumulate}"
    if problem.precision.y == FLOAT32 and not problem.epilogue.requantise:
        return "sums of integers as float32 without scales"
    if is_cut(problem.window):
        return "integers of a kernel that is cut into pieces"
    if not exact_sizes(problem, taps):
        return f"sums of {problem.sum_bits} bits; no tile of integers is exact with so many"
    return None


def exact_sizes(problem: Problem, taps: Pair) -> list[Pair]:
    """All tiles of outputs with which a problem of integers is exact."""
    axes = [range(1, _MOST_OUTPUTS + 1) if r > 1 else range(1, 2) for r in taps]
    return [
        (h, w) for h in axes[0] for w in axes[1] if h * w > 1 and _is_exact(problem, (h, w), taps)
    ]


def named_size(sizes: list[Pair], m: Pair) -> list[Pair]:
    """The tile that is given, one output along axes of one tap, if it is one of the exact ones.

    Raises:
        SpecError: it is not.
    """
    most = [max(m_of_axis) for m_of_axis in zip(*sizes, strict=True)]
    found = m[0] if most[0] > 1 else 1, m[1] if most[1] > 1 else 1
    if found in sizes:
        return [found]
    exact = ", ".join(f"{h}x{w}" for h, w in sizes)
    raise SpecError(f"m is {m[0]}x{m[1]}; with these integers expected one of {exact}")


def _is_exact(problem: Problem, m: Pair, taps: Pair) -> bool:
    codes = problem.precision.x
    return problem.sum_bits <= _most_bits(m, taps, int(codes.low), int(codes.high))


@lru_cache(maxsize=1024)
def _most_bits(m: Pair, taps: Pair, low: int, high: int) -> int:
    """The most bits of sums with which a tile is exact for codes from `low` to `high`; 0: none."""
    height, width = map(integer_transform, m, taps)
    if height is None or width is None:
        return 0
    fit = operands_fit(height.exact, width.exact, low, high)
    return division(height.scale * width.scale).bits if fit else 0

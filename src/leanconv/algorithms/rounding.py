"""The relative error to expect of sums of products."""

from __future__ import annotations

import math
from math import prod

from leanconv.algorithms.problem import Problem, storage_error
from leanconv.codegen.half_stored import LONGEST_PIECE
from leanconv.types import BFLOAT16, DType

_FACTORS = 3.0  # roundoffs


def products(problem: Problem) -> int:
    """The largest number of products in one output, without those with padding."""
    window = problem.conv.window
    return problem.conv.inputs * prod(window.most_taps(axis) for axis in range(3))


def sum_error(problem: Problem) -> float:
    """Expected error of a plain sum of products, added up one after the other."""
    return walk_error(problem, products(problem))


def factors_error(dtype: DType) -> float:
    """Expected error of sums of products whose two factors are rounded to a type.

    A factor errs by 0.41 roundoffs in the root mean square, so does the product by 0.58, and the
    sum in the root mean square of all sums; five times that is the largest error over the largest
    sum that the other statements here have, too.
    """
    return _FACTORS * dtype.roundoff


def half_error(half: DType) -> float:
    """Expected error of the fastest products in a half precision: the error accepted with it.

    Factors are rounded to bfloat16; of float16, pieces of sums are.
    """
    if half == BFLOAT16:
        return factors_error(half)
    return half.roundoff * walk_steps(LONGEST_PIECE)


def walk_steps(terms: float) -> float:
    """The error of a sum of so many terms, in roundoffs of their type; see `walk_error`."""
    return 1.0 + 1.5 * math.sqrt(terms)


def walk_error(problem: Problem, length: float) -> float:
    """Expected error of sums that round like sequential ones of that many products.

    Each addition errs by up to a roundoff of the sum so far, so the error is a random walk whose
    steps grow with the root of their number: 0.3 sqrt(L) roundoffs in the root mean square, over
    that of the sums. The largest error over the largest sum has a wide distribution, as few sums
    have both: of 400,000 sums of 9, 100 and 400 products (normal, uniform, all positive), alone and
    in tensors, 1 in 100,000 was above 1 + sqrt(L) roundoffs and none above 1 + 1.3 sqrt(L).
    """
    conv = problem.conv
    terms = length + conv.epilogue.bias + conv.epilogue.residual
    sums = conv.precision.accumulate.roundoff * walk_steps(terms)
    return sums + storage_error(conv.precision)

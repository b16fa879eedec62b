"""Amplification of rounding by F(m, r), and the error to expect of a convolution.

Rounding of transformed inputs, weights and products reaches output i of F(m, r) with the variance

    gamma_i^2 = sum_k A^T[i,k]^2 |G_k|^2 |B^T_k|^2 / r        (rows of G and B^T in the 2-norm)

in units of that of the direct sum of r products. Its mean over i is gamma^2. In two dimensions the
variances multiply, so the error itself grows by gamma_rows · gamma_columns: by gamma^2 for square
tiles. It does not change when row k of G and B^T and column k of A^T are scaled by factors of
product 1, and with the same points it is the same for F(m, r) and F(r, m).

Where filters of t_1, t_2, ... <= r taps are summed in the transform domain, as the phases of a
stride are (3 taps at stride 2: 2 and 1), each gives |G_k|^2 over its own first taps, and their sum
is divided by all taps: the first taps of a filter weigh more in G than the others, so that short
phases round more than their share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from leanconv.errors import SpecError
from leanconv.types import FLOAT32, FLOATS, DType
from leanconv.winograd.matrices import Row, Transform, transform


def output_gamma_squared(made: Transform, filters: Sequence[int] = ()) -> Row:
    """Return gamma_i^2 of every output i of a tile, exactly.

    Args:
        made: the transform.
        filters: taps of each filter that is summed in the transform domain; one of all taps if
            none is given.
    """
    filters = filters or (made.r,)
    weights = [
        sum(sum(g * g for g in row_g[:taps]) for taps in filters) * sum(b * b for b in row_b)
        for row_g, row_b in zip(made.g, made.bt, strict=True)
    ]
    return tuple(
        sum((a * a * w for a, w in zip(row, weights, strict=True)), Fraction(0)) / sum(filters)
        for row in made.at
    )


def gamma_squared(made: Transform) -> Fraction:
    """Return gamma^2 of one axis, exactly: the mean of `output_gamma_squared`; direct is 1."""
    return sum(output_gamma_squared(made), Fraction(0)) / made.m


def amplification(*axes: Transform) -> float:
    """Return the growth of the RMS error over direct convolution's: the product of the gammas.

    Args:
        axes: the transform of each axis; one twice for square tiles, any two for rectangular
            ones, one for a nested 1-D scheme, none for direct convolution.
    """
    return math.prod(math.sqrt(gamma_squared(made)) for made in axes)


def peak_amplification(*axes: Transform, filters: Sequence[Sequence[int]] = ()) -> float:
    """Return the growth of the RMS error at the worst output of a tile.

    Args:
        axes: as of `amplification`.
        filters: of each axis, as of `output_gamma_squared`.
    """
    every = filters or ((),) * len(axes)
    return math.prod(
        _peak_gamma(made.m, made.r, made.points, tuple(taps))
        for made, taps in zip(axes, every, strict=True)
    )


@lru_cache(maxsize=512)
def _peak_gamma(m: int, r: int, points: Row, filters: tuple[int, ...]) -> float:
    """Return gamma of the worst output; it depends on the points only, not on how rows scale."""
    return math.sqrt(max(output_gamma_squared(transform(m, r, points or None), filters)))


def lost_products(*axes: Transform) -> float:
    """Return the largest sum of A^T[i,k]^2 / (|G_k| |B^T_k|) over k: products lost near zero.

    Args:
        axes: the transform of each axis.
    """
    return math.prod(_weighted(made, 0, 1) for made in axes)


def lost_inputs(*axes: Transform) -> float:
    """Return the largest sum of A^T[i,k]^2 |G_k|^2 / |B^T_k| over k: inputs lost near zero."""
    return math.prod(_weighted(made, 2, 0) for made in axes)


def _weighted(made: Transform, power: int, divided: int) -> float:
    """The largest sum over k of A^T[i,k]^2 |G_k|^power / (|B^T_k| |G_k|^divided)."""
    norms = [
        (math.sqrt(sum(g * g for g in row_g)), math.sqrt(sum(b * b for b in row_b)))
        for row_g, row_b in zip(made.g, made.bt, strict=True)
    ]
    weights = [g ** (power - divided) / b for g, b in norms]
    return max(
        sum(float(a * a) * weight for a, weight in zip(row, weights, strict=True))
        for row in made.at
    )


def largest_growth(*axes: Transform) -> float:
    """Return how much larger than sums of absolute products the transforms' numbers may be."""
    return math.prod(
        max(float(sum(map(abs, row))) for row in made.at)
        * max(float(sum(map(abs, row))) for row in made.bt)
        * max(1.0, *(float(abs(g)) for row in made.g for g in row))
        for made in axes
    )


# The largest error over the largest output, in units of the RMS at a tile's worst output: of two
# axes, of two with several partial sums, of one axis or none; and what one product of two axes
# adds, which falls with the root of their number.
_PEAK_2D, _PEAK_2D_PARTS, _PEAK, _FEW = 2.4, 2.0, 3.4, 0.5
# What G of an axis, in the type of the products, adds to the square of the RMS error. Of F(2) to
# F(7) with 2, 3 and 5 taps in two dimensions, both together were 0.1 to 1.5 at a tile's mean
# output, 1.9 at the worst one of F(4) with 2 taps.
_WEIGHTS = 0.8


def error_estimate(
    *axes: Transform,
    reduction: int,
    sums: int | None = None,
    dtype: DType = FLOAT32,
    peak: bool = True,
    filters: Sequence[Sequence[int]] = (),
    exact_weights: bool = True,
) -> float:
    """Return the relative error to expect against the exact result.

    With u the unit roundoff and L the reduction, a sequential sum of L products of random signs
    has a relative RMS error of u sqrt(0.2 + 0.085 L), and each transformed axis adds 0.6 for the
    rounding of its transforms. All of it is amplified. Constants measured on normal data in
    float32, L from 1 to 512: F(1), F(2), F(4), F(6), F(7) and F(8) with 3 taps in two dimensions
    are within 10 % of it. Partial sums of l products, added up, round like sequential ones of
    l + L / l.

    The largest error divided by the largest output has a wide distribution: products of a large
    transformed weight with a large transformed input round most, so it is wider the more outputs
    there are and the fewer products each has. In units of the RMS at a tile's worst output, over
    2,200 convolutions of up to 900,000 outputs, strides 1 to 4, normal and uniform, it was at most
    2.6 with one channel, 2.1 with 16 and more, and 1.9 with partial sums in two dimensions; 3.1 in
    one, 2.8 for direct sums. The estimate takes 2.9, 2.5, 2.0 and 3.4.

    Args:
        axes: the transform of each axis, as in `amplification`; none for direct convolution.
        reduction: products summed one after another into one accumulator: input channels of a
            group (times the phases summed in the transform domain); with no axes, times the taps.
        sums: products of one partial sum, None where all are added up one after another.
        dtype: of transformed values and sums, float32 or float64.
        peak: True for the maximum norm (largest error over largest output, which is meaningful
            from some tens of outputs on), False for the expected relative RMS error.
        filters: of each axis, as of `output_gamma_squared`, for the maximum norm.
        exact_weights: whether weights are transformed in float64 and rounded once; False: in
            `dtype`.

    Raises:
        SpecError: another dtype, or a reduction below 1.
    """
    if dtype not in FLOATS or reduction < 1:
        raise SpecError(
            f"an error is estimated for {' or '.join(FLOATS)} and sums of at least 1 "
            f"product, got {dtype} and {reduction}"
        )
    parts = sums is not None and sums < reduction
    length = sums + reduction / sums if sums and parts else reduction
    each = 0.6 if exact_weights else 0.6 + _WEIGHTS
    rounding = math.sqrt(0.2 + each * len(axes) + 0.085 * length) * dtype.roundoff
    if not peak:
        return rounding * amplification(*axes)
    growth = peak_amplification(*axes, filters=filters)
    if len(axes) != 2:
        return rounding * _PEAK * growth
    even = sums is not None and reduction >= 1.5 * sums
    return rounding * growth * (_PEAK_2D_PARTS if even else _PEAK_2D + _FEW / math.sqrt(reduction))

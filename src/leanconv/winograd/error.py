"""How much F(m, r) amplifies rounding, and the error to expect of a convolution.

Rounding of transformed inputs, weights and products reaches output i of F(m, r) with the variance

    gamma_i^2 = sum_k A^T[i,k]^2 |G_k|^2 |B^T_k|^2 / r        (rows of G and B^T in the 2-norm)

in units of that of the direct sum of r products. Its mean over i is gamma^2. In two dimensions the
variances multiply, so the error itself grows by gamma_rows · gamma_columns: by gamma^2 for square
tiles. It does not change when row k of G and B^T and column k of A^T are scaled by factors of
product 1, and with the same points it is the same for F(m, r) and F(r, m).
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from leanconv.errors import SpecError
from leanconv.winograd.matrices import Row, Transform, transform

_UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53}


def output_gamma_squared(made: Transform) -> Row:
    """Return gamma_i^2 of every output i of a tile, exactly."""
    weights = [
        sum(g * g for g in row_g) * sum(b * b for b in row_b)
        for row_g, row_b in zip(made.g, made.bt, strict=True)
    ]
    return tuple(
        sum((a * a * w for a, w in zip(row, weights, strict=True)), Fraction(0)) / made.r
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


def peak_amplification(*axes: Transform) -> float:
    """Return the growth of the RMS error at the worst output of a tile."""
    return math.prod(_peak_gamma(made.m, made.r, made.points) for made in axes)


@lru_cache(maxsize=512)
def _peak_gamma(m: int, r: int, points: Row) -> float:
    """Return gamma of the worst output; it depends on the points only, not on how rows scale."""
    return math.sqrt(max(output_gamma_squared(transform(m, r, points or None))))


# The largest error over the largest output, in units of the RMS at a tile's worst output: of two
# axes, of two large ones with several partial sums, of one axis or none.
_PEAK_2D, _PEAK_2D_PARTS, _PEAK = 2.2, 1.7, 3.4
_LARGE = 10.0  # amplification from which on the rounding of products is all that counts


def error_estimate(
    *axes: Transform,
    reduction: int,
    sums: int | None = None,
    dtype: str = "float32",
    peak: bool = True,
) -> float:
    """Return the relative error to expect against the exact result.

    With u the unit roundoff and L the reduction, a sequential sum of L products of random signs
    has a relative RMS error of u sqrt(0.2 + 0.085 L), and each transformed axis adds 0.6 for the
    rounding of its transforms. All of it is amplified. Constants measured on normal data in
    float32, L from 1 to 512: F(1), F(2), F(4), F(6), F(7) and F(8) with 3 taps in two dimensions
    lie within 10 % of it. The largest error divided by the largest output was at most 2.0 times
    the RMS at a tile's worst output in two dimensions, 3.1 in one, 2.8 for direct sums; the
    estimate takes a tenth more. Partial sums of l products, added up, round like sequential ones
    of l + L / l, and more evenly: where the amplification is large, at most 1.4 times the RMS was
    seen in two dimensions with 48 to 400 channels, 1.0 with 8 parts and more; the estimate takes
    1.7, less where there are many parts.

    Args:
        axes: the transform of each axis, as in `amplification`; none for direct convolution.
        reduction: products summed one after another into one accumulator: input channels of a
            group (times the phases summed in the transform domain); with no axes, times the taps.
        sums: products of one partial sum, None where all are added up one after another.
        dtype: `"float32"` or `"float64"`, of transformed values and sums. Weights are taken to be
            transformed in float64.
        peak: True for the maximum norm (largest error over largest output, which is meaningful
            from some tens of outputs on), False for the expected relative RMS error.

    Raises:
        SpecError: another dtype, or a reduction below 1.
    """
    if dtype not in _UNIT_ROUNDOFF or reduction < 1:
        raise SpecError(
            f"an error is estimated for {' or '.join(_UNIT_ROUNDOFF)} and sums of at least 1 "
            f"product, got {dtype} and {reduction}"
        )
    parts = sums is not None and sums < reduction
    length = sums + reduction / sums if sums and parts else reduction
    rounding = math.sqrt(0.2 + 0.6 * len(axes) + 0.085 * length) * _UNIT_ROUNDOFF[dtype]
    if not peak:
        return rounding * amplification(*axes)
    growth = peak_amplification(*axes)
    factor = _PEAK_2D if len(axes) == 2 else _PEAK
    if len(axes) == 2 and sums is not None and reduction >= 1.5 * sums and growth >= _LARGE:
        factor = min(_PEAK_2D_PARTS, 1.4 + 0.5 * math.sqrt(sums / reduction))
    return rounding * factor * growth

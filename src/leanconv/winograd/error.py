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

from leanconv.errors import SpecError
from leanconv.winograd.matrices import Row, Transform

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
    return math.prod(math.sqrt(max(output_gamma_squared(made))) for made in axes)


# The largest error over the largest output, in units of the RMS at a tile's worst output.
_PEAK_2D, _PEAK = 2.2, 3.4


def error_estimate(
    *axes: Transform, reduction: int, dtype: str = "float32", peak: bool = True
) -> float:
    """Return the relative error to expect against the exact result.

    With u the unit roundoff and L the reduction, a sequential sum of L products of random signs
    has a relative RMS error of u sqrt(0.2 + 0.085 L), and each transformed axis adds 0.6 for the
    rounding of its transforms. All of it is amplified. Constants measured on normal data in
    float32, L from 1 to 512: F(1), F(2), F(4), F(6), F(7) and F(8) with 3 taps in two dimensions
    lie within 10 % of it. The largest error divided by the largest output was at most 2.0 times
    the RMS at a tile's worst output in two dimensions, 3.1 in one, 2.8 for direct sums; the
    estimate takes a tenth more.

    Args:
        axes: the transform of each axis, as in `amplification`; none for direct convolution.
        reduction: products summed one after another into one accumulator: input channels of a
            group (times the phases summed in the transform domain); with no axes, times the taps.
            Where partial sums of length l are added up, l + reduction / l.
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
    rounding = math.sqrt(0.2 + 0.6 * len(axes) + 0.085 * reduction) * _UNIT_ROUNDOFF[dtype]
    if not peak:
        return rounding * amplification(*axes)
    return rounding * (_PEAK_2D if len(axes) == 2 else _PEAK) * peak_amplification(*axes)

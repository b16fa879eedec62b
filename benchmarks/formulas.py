"""What the documents say about sizes, work and register tiles, as functions of a spec.

Sizes are in elements, over the whole batch; multiply by `spec.itemsize` for bytes. As in the
documents the input counts with its padding, and dilations are 1.
"""

from __future__ import annotations

from fractions import Fraction
from math import prod

from leanconv.records import dataclass
from leanconv.spec import ConvSpec


@dataclass(frozen=True)
class _Names:
    """The documents' letters: i input (padded), k kernel, o output, s stride; n, c, h, w."""

    n: int
    c: int
    ih: int
    iw: int
    kh: int
    kw: int
    oh: int
    ow: int
    sh: int
    sw: int


def _names(spec: ConvSpec) -> _Names:
    if len(spec.size) != 2 or any(d != 1 for d in spec.dilation):
        raise ValueError(f"{spec}: expected two spatial axes and no dilation")
    padded = [sum(i) for i in zip(spec.size, spec.pad_begin, spec.pad_end, strict=True)]
    return _Names(
        spec.batch,
        spec.in_channels,
        *padded,
        *spec.kernel,
        *spec.output_size,
        *spec.stride,
    )


def input_elements(spec: ConvSpec) -> int:
    """i_n·i_c·i_h·i_w."""
    v = _names(spec)
    return v.n * v.c * v.ih * v.iw


def im2col_elements(spec: ConvSpec) -> int:
    """The im2col matrix: MEC eq. 2 (which prints k_c for i_c), thesis eq. 2-5.

    The thesis counts the input where H_f = W_f = s, when nothing is copied twice; a matrix that is
    laid out counts i_n·o_h·o_w × k_h·k_w·i_c there as well, which is what this returns.
    """
    v = _names(spec)
    return v.n * v.oh * v.ow * v.kh * v.kw * v.c


def mec_elements(spec: ConvSpec) -> int:
    """MEC's lowered tensor, eq. 3: i_n·o_w·i_h·k_w·i_c (printed with k_c for i_c)."""
    v = _names(spec)
    return v.n * v.ow * v.ih * v.kw * v.c


def mec_saving(spec: ConvSpec) -> Fraction:
    """MEC eq. 4: R = i_n·i_c·o_w·k_w·(i_h - k_h)(k_h/s_h - 1), with i_c where k_c is printed.

    It is eq. 2 less eq. 3 exactly where s_h divides i_h - k_h, since it takes o_h without rounding.
    """
    v = _names(spec)
    return v.n * v.c * v.ow * v.kw * (v.ih - v.kh) * (Fraction(v.kh, v.sh) - 1)


def im2win_elements(spec: ConvSpec) -> int:
    """The im2win tensor, thesis eq. 2-4; the input's size where H_f ≤ s_h (printed: H_f = s)."""
    v = _names(spec)
    if v.kh <= v.sh:
        return input_elements(spec)
    return v.n * v.c * v.oh * v.iw * v.kh


def im2win_saving(spec: ConvSpec) -> Fraction:
    """Thesis eq. 2-6: δ = N·C·H_f·H_o·(W_i - W_f)(W_f/s - 1), W_o taken without rounding."""
    v = _names(spec)
    return v.n * v.c * v.kh * v.oh * (v.iw - v.kw) * (Fraction(v.kw, v.sw) - 1)


def im2col_over_im2win(spec: ConvSpec) -> Fraction:
    """Thesis eq. 2-7: ρ = W_f·W_o / W_i."""
    v = _names(spec)
    return Fraction(v.kw * v.ow, v.iw)


def im2col_over_mec(spec: ConvSpec) -> Fraction:
    """Eq. 2 over eq. 3: k_h·o_h / i_h, the factor of MEC's figure 4a."""
    v = _names(spec)
    return Fraction(v.kh * v.oh, v.ih)


def winograd_elements(spec: ConvSpec, m: int) -> int:
    """U, V and M of the four separate stages: alpha²·(K·C + C·P + K·P) for P tiles of m × m."""
    v = _names(spec)
    tiles = v.n * -(-v.oh // m) * -(-v.ow // m)
    alpha = (m + v.kh - 1) * (m + v.kw - 1)
    k = spec.out_channels
    return alpha * (k * v.c + v.c * tiles + k * tiles)


def float_operations(spec: ConvSpec) -> int:
    """Thesis eq. 3-4: C_o·H_o·W_o·(2·C_i·H_f·W_f), times the batch, which is left out in print."""
    v = _names(spec)
    return v.n * spec.out_channels * v.oh * v.ow * 2 * v.c * v.kh * v.kw


def gflops(spec: ConvSpec, duration_ns: float) -> float:
    """Thesis eq. 3-3: operations over time, in GFLOP/s (one operation a nanosecond is one)."""
    return float_operations(spec) / duration_ns


def tile_bounds(registers: int, lanes: int, fma_units: int, fma_latency: int) -> tuple[int, int]:
    """Thesis eqs 3-1 and 3-2: N_vec·N_fma·L_fma ≤ θ ≤ N_reg·N_vec.

    Args:
        registers: N_reg, vector registers.
        lanes: N_vec, elements of a vector.
        fma_units: N_fma, multiply-add units.
        fma_latency: L_fma, cycles.

    Returns:
        The least and the largest θ, the output elements that are summed in registers at once.
    """
    return lanes * fma_units * fma_latency, registers * lanes


def multiplications_saved(m: tuple[int, ...], r: tuple[int, ...]) -> Fraction:
    """Products of the plain sum over those of F(m, r), whose number is Π(m + r - 1)."""
    return Fraction(prod(m) * prod(r), prod(a + b - 1 for a, b in zip(m, r, strict=True)))

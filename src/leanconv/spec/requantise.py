"""Requantisation: sums of products of codes become codes again.

A code is an integer of a quantised tensor; it stands for (code - zero) · scale. For sums of output
channel k, with scale[k] = scale of x · scale of w[k] / scale of y as float32:

    y = clamp(rint(float32(sum) · scale[k]) + zero, low, high)

with an activation f, and with scale[k] = scale of x · scale of w[k],

    y = clamp(rint(f(float32(sum) · scale[k]) · factor[k] + summand[k]) + zero, low, high)

where · and + are one FMA. And where another tensor of codes is added, as a convolution and an
addition by themselves give it:

    own = clamp(rint(float32(sum) · scale[k]) + own_zero, own_low, own_high)      or with f
    y   = clamp(rint(a · a_ratio + (b · b_ratio + fixed)), low, high)        each + and · one FMA

where a and b are `own` and the residual, in the order of the addition's operands. `rint` rounds
half to even. All of it is float32 arithmetic, the same on every machine, and the same as that of
onnxruntime's QLinearConv and QLinearAdd; an activation is computed as everywhere, the result of one
that takes an exponential may differ in its last bit.

What decides the code of a kernel is `Requantise`; numbers are data (`graph.ops.requantised`), so
that one code serves all layers.
"""

from __future__ import annotations

from math import inf

from leanconv.records import dataclass
from leanconv.spec.activation import Activation
from leanconv.types import FLOAT32

# The numbers of a quantisation, as kernels read them.
LOW, HIGH, ZERO, LAST_LOW, LAST_HIGH, OWN_RATIO, RESIDUAL_RATIO, FIXED = range(8)
NUMBERS = 8
NUMBERS_BYTES = NUMBERS * FLOAT32.bytes


@dataclass(frozen=True)
class Requantise:
    """The part of a requantisation that decides a kernel's code.

    Attributes:
        residual_first: whether the residual is the first operand of the addition.
        small: whether all scales are less than 1, so that every scaled sum has a nearest int32.
        saturates: whether the bounds of the result are those of its type, nothing is added to what
            is rounded last, and, where a residual is added, what is rounded last has a nearest
            int32.
        activation: of scaled sums, whose results have a factor and a summand each.
    """

    residual_first: bool = False
    small: bool = False
    saturates: bool = False
    activation: Activation | None = None

    @property
    def factors(self) -> int:
        """Numbers of a channel: its scale; with an activation its factor and summand, too."""
        return 1 if self.activation is None else 3


@dataclass(frozen=True)
class ResidualCodes:
    """The quantisations that meet where a convolution's own codes and a residual's are added.

    Attributes:
        own_zero, own_low, own_high: zero and bounds of the convolution's own codes.
        own_scale, scale, result_scale: of these codes, of the residual, of the result; float32.
        zero: of the residual.
        first: whether the residual is the first operand of the addition.
    """

    own_zero: int
    own_low: int
    own_high: int
    own_scale: float
    scale: float
    result_scale: float
    zero: int
    first: bool = False


@dataclass(frozen=True)
class Quantisation:
    """Quantisation of the results that are made of sums: codes, or float32.

    Attributes:
        zero: of the result's codes; 0 of float32.
        low, high: bounds of the result, as codes or as float32.
        residual: how a residual is added; None if there is none.
        activation: of scaled sums; factors and summands make codes of its results.
    """

    zero: int = 0
    low: float = -inf
    high: float = inf
    residual: ResidualCodes | None = None
    activation: Activation | None = None

    @property
    def form(self) -> Requantise:
        """The part that decides a kernel's code."""
        first = self.residual is not None and self.residual.first
        return Requantise(first, activation=self.activation)

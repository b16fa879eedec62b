"""Between which magnitudes a stated error holds: numbers that vanish, and numbers that overflow.

Kernels take subnormal numbers for zero and give zero for subnormal results (`runtime/native`), as
CPUs compute with subnormal ones up to 200 times slower. With T the least normal number, a value of
root-mean-square s in an intermediate tensor is below T, and lost, with the probability 0.8 T / s,
and is T / sqrt(3) then: a variance of 0.27 T^3 / s for each. With s = rho R, R the largest result,
and `amp` what an error there becomes in a result, all of them together are

    0.27 T^3 / R · sum over values of amp^2 / rho

That sum is what a method states (`Losses`): of partial sums and products, and of inputs, where it
grows with the third power of the weights' root-mean-square. The largest of many errors, five
standard deviations, is a fifth of the stated error at

    R = T (13 / error · sqrt(sum))^(2/3)

and the least result for which an error is stated is `_MARGIN` times that, as data are no normal
numbers of one size.

Sums of products of codes lose nothing while they fit their bits, which follow from the weights. An
output is largest where its positive weights meet the largest codes and the others the least: of
uint8 codes it is 255 times the sum of the positive weights, at least 255 times that of the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from leanconv.algorithms.problem import Excess, Problem, products, walk_steps
from leanconv.graph.edit import release_read
from leanconv.graph.factors import LEAST_TAPS, Factors, factors_of
from leanconv.graph.ir import number_of
from leanconv.graph.zeros import LEAST, MOST_PIXELS, Known, Zeros, known, zeros_of
from leanconv.records import dataclass, replace
from leanconv.types import (
    FLOAT32,
    HALVES,
    INT8,
    MOST_OF_TWO,
    UINT8,
    DType,
    Precision,
    as_dtype,
)

# Bits that are distinguished: those that tiles of Winograd leave (`leanconv.winograd.variants`).
# Layers that differ in nothing else share what is chosen for them.
_TOLD_APART = (26, 28, 30, 32)
_GROUP, TWO_GROUPS = 4, 8  # weights of a group, and of two
_FEW = 3  # vectors of two groups, one of which may exceed where it is of interest how many do


def sum_bits(w: np.ndarray, codes: DType) -> int:
    """Bits, the sign counted, that hold every sum of products, whatever the codes are: 26 to 32.

    Args:
        w: integers (K, C/g, taps…).
        codes: element type of the input, int8 or uint8.
    """
    w = w if w.strides[0] else w[:1]  # outputs that are alike, as of `stand_in`
    flat = w.reshape(len(w), -1)
    up = np.maximum(flat, 0).sum(1, dtype=np.int64)
    down = up - flat.sum(1, dtype=np.int64)
    low, high = int(codes.low), int(codes.high)
    largest = int((up * high - down * low).max(initial=0))
    least = int((up * low - down * high).min(initial=0))
    needed = 1 + max(largest.bit_length(), (-least - 1).bit_length() if least else 0)
    return next((bits for bits in _TOLD_APART if needed <= bits), _TOLD_APART[-1])


@dataclass(frozen=True)
class PairTraits:
    """Which weights may be multiplied by unsigned bytes with sums of products in int16.

    Two of one sign that are together `types.MOST_OF_TWO` at most; or four of one sign.

    Attributes:
        excess: of groups of four input channels, and of two groups from an even one on.
        neighbours: whether no neighbours are more, wherever a group begins.
        narrow: whether no two weights are more.
    """

    excess: Excess
    neighbours: bool
    narrow: bool

    @staticmethod
    def of(w: np.ndarray, lanes: int) -> PairTraits:
        """The traits of int8 weights (K, C/g, taps…), with `lanes` outputs in a vector."""
        w = w.reshape(*w.shape[:2], -1)
        most = 2 * max(-int(w.min(initial=0)), int(w.max(initial=0)))
        if 2 * most <= MOST_OF_TWO:
            return PairTraits(Excess(0, 0), True, True)
        twos, fours, neighbours, seen = 0, 0, True, 0
        step = lanes * max(1, _PIECE // max(1, lanes * w[0].size))
        for first in range(0, len(w), step):
            part = w[first : first + step]
            part = np.pad(part, ((0, -len(part) % lanes), (0, -part.shape[1] % TWO_GROUPS), (0, 0)))
            vectors = part.shape[0] // lanes, lanes
            if most > MOST_OF_TWO:
                bad = exceeding(part)
                neighbours = neighbours and not bad.any()
                groups = bad[:, ::2].reshape(*vectors, part.shape[1] // _GROUP, 2, -1)
                twos += int(groups.any(axis=(1, 3)).sum())
            if not twos and _FEW * fours <= seen:
                found = fours_exceeding(part).reshape(*vectors, -1).any(axis=1)
                fours, seen = fours + int(found.sum()), seen + found.size
        release_read(w)
        known = not twos and _FEW * fours <= seen
        return PairTraits(Excess(twos, fours if known else None), neighbours, most <= MOST_OF_TWO)

    def excess_in(self, groups: int, inputs: int) -> Excess | None:
        """Return `Problem.excess` for a convolution; with groups None if some pairs exceed.

        Weights of one input channel lie beside those of other taps.
        """
        if groups == 1 != inputs:
            return self.excess
        return Excess(0) if (self.narrow if inputs == 1 else self.neighbours) else None


def pair_traits(w: np.ndarray, lanes: int) -> PairTraits | None:
    """Return the traits of weights, or of those that they stand for; None unless they are int8."""
    if isinstance(w, Known):
        return w.pairs if isinstance(w.pairs, PairTraits) else None
    if w.dtype != INT8.numpy or w.ndim < 3:
        return None
    case = number_of(w), lanes
    known = _pairs.get(case)
    if known is None:
        if len(_pairs) >= _MOST_KNOWN:
            _pairs.clear()
        known = _pairs[case] = PairTraits.of(w, lanes)
    return known


_pairs: dict[tuple[int, int], PairTraits] = {}  # by the weights' number
_MOST_KNOWN = 4096


def exceeding(w: np.ndarray) -> np.ndarray:
    """Mark weights (K, C, taps) that are too large together with the next input channel's."""
    up = np.maximum(w, 0).astype(np.int16)
    down = w - up
    high, low = up[:, :-1] + up[:, 1:], down[:, :-1] + down[:, 1:]
    return np.asarray((high > MOST_OF_TWO) | (low < -MOST_OF_TWO))


def fours_exceeding(w: np.ndarray) -> np.ndarray:
    """Mark two groups of weights (K, C, taps) in which two neighbours of each are too large.

    Returns:
        Booleans (K, C / 8, taps), if no two neighbours are too large.
    """
    last = np.ascontiguousarray(w.transpose(0, 2, 1))  # eight channels are a word
    up = np.maximum(last, 0).view(np.uint8)
    found = np.zeros((*last.shape[:2], last.shape[2] // TWO_GROUPS), bool)
    for part in (up, up - last.view(np.uint8)):  # positive weights, and the others without sign
        eight = part.view(np.uint64)
        twos = (eight & _BYTES) + (eight >> np.uint64(8) & _BYTES)
        fours = twos + (twos >> np.uint64(32))
        found |= (fours + _UP_TO_TWO) & _HIGHEST != 0
    return np.asarray(found.transpose(0, 2, 1))


# Of a word of 16-bit numbers: their lower bytes; of the lower two what lets more than 128 reach
# the highest bit, and that bit.
_BYTES, _UP_TO_TWO = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x7F7F7F7F)
_HIGHEST = np.uint64(0x80008000)


def alike(w: np.ndarray) -> int:
    """An integer that as all weights gives sums of as many bits as w, or of more, but no fewer."""
    dtype, wanted = as_dtype(w.dtype), [sum_bits(w, codes) for codes in (UINT8, INT8)]
    for number in range(int(dtype.high) + 1):
        filled = np.broadcast_to(np.array(number, w.dtype), w.shape)
        found = [sum_bits(filled, codes) for codes in (UINT8, INT8)]
        if all(bits >= least for bits, least in zip(found, wanted, strict=True)):
            return number
    return int(dtype.high)


_MARGIN = 16.0
LARGEST = 2.5  # the largest of 64 results, in root-mean-squares
_SMALL = 2.0**22  # least normal numbers over a roundoff, below which weights are small
_PIECE = 2**16  # weights whose squares are summed together
_SAFE = 10**12  # the squares of sizes far from 1 are subnormal or infinite in float32
_LOOK = 2**12  # weights that are looked at together


@dataclass(frozen=True)
class Losses:
    """Loss of accuracy of a method with numbers that are too small or too large.

    Attributes:
        sums: the sum of amp^2 / rho over products and partial sums.
        inputs: the same over inputs and values made of them alone, for weights of size 1.
        growth: the largest intermediate value over the largest input, or over it times the largest
            sum of absolute weights of one result if that sum is above 1.
        transforms: whether weights are transformed.
    """

    sums: float
    inputs: float
    growth: float = 1.0
    transforms: bool = False


@dataclass(frozen=True)
class Magnitudes:
    """Bounds of results and inputs between which a stated error holds.

    Attributes:
        least_result: the least that the largest result may be; infinity if the weights are too
            small for any statement.
        most_input: the largest absolute value that an input may have.
    """

    least_result: float
    most_input: float

    @staticmethod
    def of_all(found: Iterable[Magnitudes]) -> Magnitudes:
        """Return the bounds within which the errors of all parts hold."""
        pairs = list(found)
        return Magnitudes(
            max(each.least_result for each in pairs), min(each.most_input for each in pairs)
        )

    def __str__(self) -> str:
        if math.isinf(self.least_result):
            return "not stated: the weights are nearly all subnormal, lost in transforms, or huge"
        result = f"the largest result is at least {self.least_result:.1e}"
        inputs = f"no input exceeds {self.most_input:.1e}"
        # Weights of zero, which stand for those that nobody knows, have no least result.
        return "stated where " + " and ".join([result] * (self.least_result > 0) + [inputs])


def plain_losses(problem: Problem) -> Losses:
    """Losses of sums of products, added up one after the other."""
    return losses_of_sums(products(problem))


def losses_of_sums(length: int) -> Losses:
    """Losses of sums of so many products."""
    return Losses(2 * LARGEST * length, LARGEST * length**1.5)


def are_small(w: np.ndarray) -> bool:
    """Return whether transforms lose the weights as too small; False if all weights are 0.

    Args:
        w: weights; as soon as one is large enough, the others are not read.
    """
    dtype = _computed(w)
    if not dtype.is_float or not w.size:
        return False
    least = _SMALL * dtype.least_normal / dtype.roundoff
    w = _once(w)
    first = w.reshape(-1)[:_LOOK] if w.flags.c_contiguous else w[:1]
    small = _largest(first) < least and 0 < _largest(w) < least
    release_read(w)  # the system maps more of a file than is read
    return small


@dataclass(frozen=True)
class WeightTraits:
    """What decides of floating-point weights how they are computed with.

    Attributes:
        small, zeros, factors: as of `Problem`.
    """

    small: bool
    zeros: Zeros | None
    factors: Factors | None

    @staticmethod
    def of(
        w: np.ndarray, pixels: int, least_zeros: float = LEAST, least_taps: int = LEAST_TAPS
    ) -> WeightTraits:
        """The traits of weights.

        Args:
            w: the weights (K, C/g, taps…).
            pixels: outputs of each filter, of all images.
            least_zeros: part of them from which on their zeros are of interest.
            least_taps: along one axis, from which on their factors are.
        """
        zeros = zeros_of(w, least_zeros, sliced=pixels <= MOST_PIXELS)
        return WeightTraits(are_small(w), zeros, factors_in(w, least_taps))

    def given_to(self, problem: Problem) -> Problem:
        """Return a problem with these weights."""
        return replace(problem, small_weights=self.small, zeros=self.zeros, factors=self.factors)


def factors_in(w: np.ndarray, least_taps: int = LEAST_TAPS) -> Factors | None:
    """How filters are sums of products, with no more left than a part of what sums round off."""
    return factors_of(w, walk_steps(math.prod(w.shape[2:])), least_taps)


def stand_in(w: np.ndarray, pixels: int, lanes: int | None = None) -> np.ndarray:
    """An array of the same shape without bytes of its own, of which algorithms say the same.

    It is small if the weights are, and has their zeros and factors; sums of products with integers
    have as many bits as theirs.

    Args:
        w: the weights (K, C/g, taps…).
        pixels: outputs of each filter, of all images, or fewer.
        lanes: of the vectors whose `PairTraits` are wanted; None if nobody asks for any.
    """
    dtype, pairs = _computed(w), None
    value = dtype.least_normal if are_small(w) else 0.0
    if dtype in (INT8, UINT8) and w.size:
        value = alike(w)
        pairs = pair_traits(w, lanes) if lanes else None
        release_read(w)
    found = np.broadcast_to(np.array(value, w.dtype), w.shape)
    return known(found, zeros_of(w, sliced=pixels <= MOST_PIXELS), factors_in(w), pairs)


def _computed(w: np.ndarray) -> DType:
    """The type in which weights are computed with."""
    dtype = as_dtype(w.dtype)
    return FLOAT32 if dtype in HALVES else dtype


def _once(w: np.ndarray) -> np.ndarray:
    """An array without the elements that repeat others, as where one number fills it."""
    return w[tuple(slice(None) if step else slice(1) for step in w.strides)]


def _largest(w: np.ndarray) -> float:
    """The largest absolute value."""
    return max(abs(float(w.max())), abs(float(w.min())))


def magnitudes(losses: Losses, error: float, w: np.ndarray) -> Magnitudes:
    """Return the bounds within which an error holds for given weights.

    Args:
        losses: of the method.
        error: the stated one.
        w: weights (K, C / groups, taps…).
    """
    dtype, (size, summed) = _computed(w), _size_and_sum(w)
    found = usual_magnitudes(losses, error, dtype, size)
    if not size:
        found = replace(found, least_result=0.0)
    elif size < _least_normal(dtype, error) or (losses.transforms and are_small(w)):
        found = replace(found, least_result=math.inf)
    return replace(found, most_input=found.most_input / max(1.0, summed))


def in_halves(found: Magnitudes, precision: Precision, w: np.ndarray | None) -> Magnitudes:
    """Return the bounds where operands are stored in halves, from those of float32.

    Subnormal halves are kept, so that what is rounded off is a share of the least normal number.
    """
    halves = [each for each in (precision.w, precision.y) if each in HALVES]
    if not halves or not precision.accumulate.is_float:
        return found
    size, summed = (1.0, 1.0) if w is None else _size_and_sum(w)
    if size and precision.w in HALVES and size < precision.w.least_normal:
        return replace(found, least_result=math.inf)
    if precision.y not in HALVES:
        return found
    least = max(found.least_result, precision.y.least_normal)
    return Magnitudes(least, min(found.most_input, precision.y.high / max(1.0, summed)))


def usual_magnitudes(losses: Losses, error: float, dtype: DType, size: float = 1.0) -> Magnitudes:
    """Return the bounds of an error if no result's absolute weights add up to more than 1.

    Args:
        losses: of the method.
        error: the stated one.
        dtype: of the numbers.
        size: a bound of the weights' root-mean-square, not nearly subnormal.
    """
    # The cube root of sums + inputs size^3 or a little more: the cube of a size may overflow.
    lost = float(losses.sums ** (1 / 3) + losses.inputs ** (1 / 3) * size)
    return Magnitudes(_least_normal(dtype, error) * lost, dtype.high / losses.growth)


def _least_normal(dtype: DType, error: float) -> float:
    """The least size of numbers of which too few are subnormal to matter for an error."""
    return float(_MARGIN * dtype.least_normal * (13 / error) ** (2 / 3))


def _size_and_sum(w: np.ndarray) -> tuple[float, float]:
    """The root-mean-square of weights, and the largest sum of one result's absolute weights."""
    if not w.size:
        return 0.0, 0.0
    rows = w.reshape(len(w), -1)
    largest = _largest(rows)
    if not largest or not math.isfinite(largest):
        return largest, largest
    squares, most, some = 0.0, 0.0, max(1, _PIECE // rows.shape[1])
    safe = w.dtype == np.float32 and 1 / _SAFE < largest < _SAFE
    scale = 1.0 if safe else largest
    for first in range(0, len(rows), some):
        part = np.abs(rows[first : first + some])
        if not safe:
            part = part.astype(np.float64) / largest
        squares += float(np.vdot(part, part))
        most = max(most, float(part.sum(axis=1).max()))
    return scale * math.sqrt(squares / w.size), scale * most

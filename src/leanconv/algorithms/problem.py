"""A convolution with the strides of its operands: the input of every algorithm's planning.

Beside it: the relative error to expect of its sums of products.
"""

from __future__ import annotations

import math
from math import prod

import numpy as np

from leanconv.algorithms.common.conv import Conv, with_conv
from leanconv.codegen.geometry import Access, PhasedAccess, Triple, triple
from leanconv.codegen.half_stored import LONGEST_PIECE
from leanconv.graph.factors import Factors
from leanconv.graph.zeros import Zeros
from leanconv.records import dataclass, field, replace
from leanconv.spec import ConvSpec
from leanconv.spec.conv import Propagation
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.spec.typical import SIDE
from leanconv.target import Target
from leanconv.types import BFLOAT16, DType, Precision

_L3_PARTS = 3  # input and output of at most one part of L3 leave room for what is prefetched
# The error accepted of one layer in float32 if the user does not say.
_DEFAULT_ERROR = 2e-5

# The limit of one layer's transformed weights where the user names no algorithm: a constant, and a
# multiple of the weights as given. FFT tiles of 16 take 43 times the weights of a 3x3 kernel.
_WEIGHTS_BYTES, _WEIGHTS_FACTOR = 64 * 2**20, 4
_WEIGHTS = 2.0  # roundoffs
_FACTORS = 3.0  # roundoffs of a sum whose two factors are rounded
_HALF_ERROR = 4e-3  # accepted of one layer that is stored in float16


def default_error(precision: Precision) -> float:
    """The error accepted of one layer if the user does not say."""
    stored, sums = storage_error(precision), precision.accumulate
    return sums.scaled_error(_DEFAULT_ERROR) + (max(stored, _HALF_ERROR) if stored else 0.0)


def storage_error(precision: Precision) -> float:
    """Return the error that halves add to a sum: results and weights are rounded to them.

    A result is off by a roundoff at most. A weight is off by 0.41 roundoffs in the root mean
    square, and so are sums of products, over that of the sums; five times that is the largest
    error over the largest sum (`walk_error`). Inputs are what they are.
    """
    sums, error = precision.accumulate, 0.0
    if not sums.is_float:
        return error
    if precision.y.roundoff > sums.roundoff:
        error += precision.y.roundoff
    if precision.w.roundoff > sums.roundoff:
        error += _WEIGHTS * precision.w.roundoff
    return error


@dataclass(frozen=True)
class Excess:
    """How many vectors of groups of weights exceed int16, their products by unsigned bytes added.

    Attributes:
        twos: in which two neighbours may.
        fours: of two groups, in which two neighbours of each may; None where some `twos` do, where
            more than a third would, or where that is not known.
    """

    twos: int
    fours: int | None = None


@dataclass(frozen=True)
class Problem:
    """A convolution for which an algorithm is chosen, and all else that decides that.

    Attributes:
        conv: the convolution.
        label: its name in messages: the whole convolution, whose text is its problem string.
        max_error: the largest relative error, in the max norm, that is accepted.
        weights_from_dram: whether the weights come from DRAM in each run, as in large networks.
        any_size: axes of the window, 0 to 2, along which the code is to serve all sizes of the
            images, of which these are some.
        usual_sizes: outputs along depth, height and width, of such axes, for which algorithm and
            tiles are chosen: the first represents all of them where only one can. If others follow,
            the size at hand is known, and takes the best of the few tiles that are good for these.
        small_weights: whether the weights are so small that transforms would lose them.
        zeros: what is known of the weights that are 0; None where few are, or weights are data.
        factors: how its filters are sums of few products of one factor for each axis; None where
            that is not known, or weights are data.
        sum_bits: bits, the sign counted, that every sum of products of codes has (`magnitudes`);
            32 where the weights are not known.
        excess: of weights whose products a machine may add up in 16 bits; None where that is not
            known (`magnitudes.PairTraits`).
        folds_shift: whether there is a bias to which the planner adds the correction for a kernel's
            shift of the codes (`GroupedConv.code_shift`).
        weights_change: whether each run packs the weights, which are data: methods that transform
            them do it fast, with roundings that are part of the error.
        propagation: what is computed of the convolution: its output, or from `conv.x` and the
            gradient of the output, which lies as `conv.y` says, the gradient of the weights.
        sums_dy: whether the gradient of a bias is wanted beside that of the weights.
    """

    conv: Conv
    label: object = field(compare=False)
    max_error: float = 1.0
    weights_from_dram: bool = False
    any_size: tuple[int, ...] = ()
    usual_sizes: tuple[Triple, ...] = ((SIDE, SIDE, SIDE),)
    small_weights: bool = False
    zeros: Zeros | None = None
    factors: Factors | None = None
    sum_bits: int = 32
    excess: Excess | None = None
    folds_shift: bool = False
    weights_change: bool = False
    propagation: Propagation = Propagation.FORWARD
    sums_dy: bool = False

    @staticmethod
    def of(spec: ConvSpec, x: Access, y: Access, max_error: float | None = None) -> Problem:
        """The problem of a spec; `default_error` where no error is given."""
        error = default_error(spec.precision) if max_error is None else max_error
        return Problem(Conv.of(spec, x, y), label=spec, max_error=error)

    def __str__(self) -> str:
        return str(self.label)

    def alone(self) -> Problem:
        """Return the same problem with a batch of one."""
        return with_conv(self, batch=1)

    def weights_3d(self, w: np.ndarray) -> np.ndarray:
        """View weights (K, C/g, kernel…) with all three kernel axes."""
        return w.reshape(*w.shape[:2], *self.conv.window.kernel)


def typicals(problem: Problem) -> tuple[Problem, ...]:
    """`typical` for each of the usual sizes but the first, or for this one."""
    return tuple(typical(problem, outputs) for outputs in problem.usual_sizes[1:] or [None])


def sized(problem: Problem) -> Problem:
    """Return the problem itself if several sizes are usual, else `typical`, to choose a tile."""
    return problem if len(problem.usual_sizes) > 1 else typical(problem)


def typical(problem: Problem, outputs: Triple | None = None) -> Problem:
    """The problem of one image, of the usual size along the axes of any size.

    Tiles are chosen for it where one code is to serve all sizes: a batch decides none of them, so
    that they are the same whether it is a number or a symbol.

    Args:
        problem: of any size.
        outputs: along axes of any size; the first of the usual ones if None.
    """
    conv, window, any_size = problem.conv, problem.conv.window, problem.any_size
    known = zip(outputs or problem.usual_sizes[0], window.out, strict=True)
    usual = (size if axis in any_size else int(o) for axis, (size, o) in enumerate(known))
    out = triple(tuple(usual), 1)
    taps = zip(out, window.kernel, window.stride, window.dilation, strict=True)
    size = triple(tuple((o - 1) * step + (k - 1) * apart + 1 for o, k, step, apart in taps), 1)
    return with_conv(
        problem,
        batch=1,
        window=replace(window, size=size, out=out, pad=(0, 0, 0)),
        x=_dense(conv.x, size, conv.in_channels),
        y=_dense(conv.y, out, conv.out_channels),
        x_offset=0,
        y_offset=int(conv.y_offset > 0),
    )


def split_phases(problem: Problem, target: Target) -> str | None:
    """Why vectors of channels that are phases hold no whole pixels; None if they do."""
    conv, y, lanes = problem.conv, problem.conv.y, problem.conv.lanes(target)
    if not isinstance(y, PhasedAccess) or y.block > 1 or lanes % y.phase_count == 0:
        return None
    if conv.outputs <= lanes:
        return None
    return f"{y.phase_count} phases in planes do not fill vectors of {lanes}"


def _dense(access: Access, size: Triple, channels: int) -> Access:
    """Return the strides of a tensor of another size in the same layout."""
    block, step, (d, h, w) = access.block, access.spatial[2], size
    if isinstance(access, PhasedAccess):
        volume, row = d * h * w * access.phase_count * block, w * step
        image = ceil_div(channels, block * access.phase_count) * volume
        spatial = (h * access.phases[0] * row, access.phases[0] * row, step)
        return replace(access, image=image, block_stride=volume, spatial=spatial, row=row)
    last = isinstance(access.block_stride, int) and access.block_stride == 1
    image = ceil_div(channels, block) * block * d * h * w
    if last and step == 1:  # images of one pixel, whose layout says nothing of the pixels beside it
        step = channels
    return Access(image, block, 1 if last else d * h * w * block, (h * w * step, w * step, step))


def strided_walk_cycles(problem: Problem, target: Target, line: float | None = None) -> float:
    """Cycles of cache misses on input and output where channels are planes.

    A walk along the channels reads a line of another page at every step, and no hardware prefetcher
    follows that. The rows of a few planes are prefetched: at most as many planes as the TLB has
    entries, with lines in different sets of L1, and both tensors together at most a third of L3.

    Args:
        problem: the convolution. Tensors with contiguous channels cost nothing here: their
            lines are prefetched.
        target: the machine.
        line: cycles of one line; those of a walk along the channels if None.

    Returns:
        0.0 where both tensors together fit L2, little where they nearly do.
    """
    conv = problem.conv
    costs, types, tensors = target.costs, conv.precision, []
    for access, channels, item in (
        (conv.x, conv.in_channels, types.x.bytes),
        (conv.y, conv.out_channels, types.y.bytes),
    ):
        # A strided part of a tensor still touches every line of its rows.
        size = conv.batch * channels * access.positions(channels) * item
        tensors.append((access, channels // conv.groups, item, size))
    everything = sum(size for *_, size in tensors)
    large = _L3_PARTS * everything > target.l3_bytes
    cycles = 0.0
    for access, planes, item, size in tensors:
        if not access.lanes_contiguous:
            apart = access.block_stride * item
            one_set = apart % costs.l1_way_bytes == 0 and planes > costs.l1_ways
            near = planes <= costs.tlb_pages and not one_set and not large
            walk = costs.prefetched_line if near else costs.strided_line
            cycles += (walk if line is None else line) * size / ALIGNMENT
    return cycles * max(0.0, 1 - target.l2_bytes / everything)


def dram_cycles(problem: Problem, target: Target, weight_bytes: float) -> float:
    """Cycles of one core to bring weights from DRAM; none where a cache holds them."""
    return weight_bytes / target.costs.dram_read if problem.weights_from_dram else 0.0


def beside_weights(problem: Problem, target: Target, cycles: float) -> float:
    """Cycles of arithmetic that reads each weight once from where it is: few pixels wait for it."""
    weights, costs = problem.conv.weight_bytes, target.costs
    if problem.weights_from_dram:
        return cycles + dram_cycles(problem, target, weights)
    stream = weights / costs.l3_read_unprefetched if weights > target.l2_bytes else 0.0
    return costs.overlapped(cycles, stream)


def most_weight_bytes(problem: Problem) -> int:
    """The most bytes of transformed weights if the user names no algorithm."""
    return _WEIGHTS_BYTES + _WEIGHTS_FACTOR * problem.conv.weight_bytes


def products(problem: Problem) -> int:
    """The largest number of products in one output, without those with padding."""
    window = problem.conv.window
    if problem.propagation == Propagation.WEIGHTS:
        return problem.conv.batch * prod(window.out)
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

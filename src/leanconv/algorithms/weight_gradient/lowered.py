"""im2col and MEC as methods of the gradient of weights: x lowered, transposed, times dy.

im2col. Windows are the rows of a matrix M, and y = M · W, so that

    M[(od, oh, ow), (kd, kh, kw, c)] = x[c, od·sd + kd·dd - pd, …]
    dW = Σ n:  M[n]ᵀ · dy[n]

MEC (Cho and Brand, ICML 2017), whose paper has the forward form alone. There the width is lowered,

    L[n, ow, d, h, (kw, c)] = x[n, c, d, h, ow·sw + kw·dw - pw]

and an output row y[n, oh] = P(n, oh) · W is the product of a partition of L[n], all ow by the
kh·kw·c elements from sh·kw·c·oh on, with the weights as a matrix. That is linear in W, so that the
chain rule gives dW = P(n, oh)ᵀ · dy[n, oh] for one output row, and

    dW = Σ n, oh:  P(n, oh)ᵀ · dy[n, oh]
    dw[k, (kh, kw, c)] = Σ n, oh, ow:  L[n, ow, oh·sh + kh - ph, (kw, c)] · dy[n, k, oh, ow]

The partitions are the forward ones: neighbours have all but sh·kw·c columns in common, and are
read where they lie, by pointer and leading dimension d·h·kw·c. So L has the bytes of equation 3,
and what the forward pass has made of it could be kept. Where kh rows are several runs (dilation, a
depth), each is read by itself; rows of padding are not in L, and their products are left out.

`images=N` lowers N images at a time, and adds what they give to dw in their order: of im2col one
if nothing is said (equation 2 with i_n = 1), of MEC the batch.

A chunk of the product reads the lowered tensor once for all of its panels, block by block, so that
a block is in L2 from the second panel on. Few chunks, on the other hand, leave threads idle: their
number follows from the shape, and the cost is averaged over some numbers of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from leanconv.algorithms.common.conv import Conv, with_conv
from leanconv.algorithms.interface import Algorithm, Candidate, KernelUse
from leanconv.algorithms.parameters import Choice, Parameters, count_or, parameter
from leanconv.algorithms.problem import Problem, products, walk_error
from leanconv.algorithms.unfold import candidates, im2col, mec
from leanconv.algorithms.unfold.kernels import Unfold
from leanconv.algorithms.unfold.unfolding import Unfolding
from leanconv.algorithms.weight_gradient.lowered_kernel import LoweredProduct, run_elements
from leanconv.codegen.tiling import Tile, rank_tiles
from leanconv.records import dataclass, replace
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.target import Target

BATCH = "batch"  # all images at once
_MOST_LOTS = 1024  # of images, two stages each
_OTHER_LOTS = (BATCH, 1)  # that a limit of memory may want
_L2_SHARE = 0.125  # of L2 that the sums of a chunk take
_L1_SHARE = 0.5  # of L1 that dy of a block of pixels takes
_MOST_VECTORS = 6  # of a panel


@dataclass(frozen=True)
class LoweringParameters(Parameters):
    """Images that are lowered at a time: a number of them, or the batch."""

    images: int | str | None = parameter(count_or(BATCH))


@dataclass(frozen=True)
class Lowering:
    """A lowered tensor of some images, and the convolution over it.

    Attributes:
        unfolding: how it is made.
        conv: over it; its taps are those that are strides in it.
        run_taps: taps that it holds apart.
        taps_first: whether the taps of a channel are neighbours.
        order: axes of the outputs (image, depth, row, column) by their strides in it.
    """

    unfolding: Unfolding
    conv: Conv
    run_taps: int
    taps_first: bool
    order: tuple[int, ...]

    def run(self, channels: int) -> int:
        """Neighbours in it at an outer tap, of so many channels of a chunk."""
        return run_elements(self.conv, self.run_taps, self.taps_first, channels)


def _of_im2col(problem: Problem, target: Target, images: int) -> Lowering:
    conv, out = problem.conv, problem.conv.window.out
    steps = conv.reduction
    spatial = (out[1] * out[2] * steps, out[2] * steps, steps)
    unfolding = im2col.unfolding_of(problem, target, spatial)
    view = im2col.view_of(problem, out, unfolding.elements, unfolding.elements * images)
    lowered = replace(conv, batch=images, window=view.window, x=view.x)
    taps = prod(conv.window.kernel)
    return Lowering(unfolding, lowered, taps, im2col.channels_first(problem), (0, 1, 2, 3))


def _of_mec(problem: Problem, target: Target, images: int) -> Lowering:
    view = mec.view_of(with_conv(problem, batch=images), merged=False)
    lowered = replace(problem.conv, batch=images, window=view.window, x=view.x)
    taps = problem.conv.window.kernel[2]
    by_taps = im2col.channels_first(problem)
    return Lowering(mec.unfolding_of(problem, target), lowered, taps, by_taps, (0, 3, 1, 2))


# -- the plan of a product over a lowered tensor: register tile, blocks of pixels, chunks ----------
def planned(lowering: Lowering, target: Target) -> tuple[float, LoweredProduct]:
    """The cheapest plan, and its estimated cycles of one core."""
    plans = ((_cycles(kernel, target), kernel) for kernel in _kernels(lowering, target))
    return min(plans, key=lambda plan: plan[0])


def _kernels(lowering: Lowering, target: Target) -> Iterator[LoweredProduct]:
    conv, lanes = lowering.conv, target.lanes(lowering.conv.dtype)
    for vectors in range(1, min(_MOST_VECTORS, ceil_div(conv.outputs, lanes)) + 1):
        block = _pixels(lowering, vectors * lanes, target)
        widths = _widths(lowering)
        for channels in widths:
            run = lowering.run(channels)
            tile = _tile(run, vectors, prod(block), conv, target)
            if tile is None:
                continue
            count = ceil_div(conv.outputs, vectors * lanes)
            for per_chunk in dict.fromkeys(ceil_div(count, 1 << n) for n in range(6)):
                made = LoweredProduct(
                    conv,
                    lowering.run_taps,
                    lowering.taps_first,
                    lanes,
                    tile,
                    channels,
                    per_chunk,
                    block,
                    lowering.order,
                    0,
                    False,
                )
                sums = made.sums.chunk_elements * conv.dtype.bytes
                least = (vectors, channels, per_chunk) == (1, widths[0], 1)
                if least or sums <= _L2_SHARE * target.l2_bytes:
                    yield made


def _tile(run: int, vectors: int, pixels: int, conv: Conv, target: Target) -> Tile | None:
    """The best tile of so many vectors: its rows are a part of a cache line, in long runs.

    The next tile then reads lines that this one has brought to L1, and no line is read in halves:
    8x2 took 0.6 of the time of 14x2.
    """
    ranked = rank_tiles(target, run, vectors, pixels)
    line = ALIGNMENT // conv.dtype.bytes
    fit = [tile for _, tile in ranked if tile.vectors == vectors]
    return next((tile for tile in fit if run < line or line % tile.rows == 0), None)


def _widths(lowering: Lowering) -> list[int]:
    """Channels of a chunk: whole cache lines of the lowered tensor, or all."""
    inputs = lowering.conv.inputs
    width = 1 if lowering.taps_first else ALIGNMENT // lowering.conv.dtype.bytes
    found = []
    while width < inputs:
        found.append(width)
        width *= 2
    return [*found, inputs]


def _pixels(lowering: Lowering, width: int, target: Target) -> tuple[int, int, int, int]:
    """The images, depth, rows and columns whose dy, a panel of that width, takes a part of L1."""
    conv, lanes = lowering.conv, target.lanes(lowering.conv.dtype)
    left = max(1, int(_L1_SHARE * target.l1_bytes) // (width * conv.dtype.bytes))
    if _step(conv, lowering.order) * 2 > target.costs.l1_way_bytes:
        left = min(left, target.costs.tlb_pages)
    extents, block = (conv.batch, *conv.window.out), [0, 0, 0, 0]
    most = [left] * 4
    if lowering.order[-1] != 3:  # columns are far apart: few of them, and long runs of rows
        most[3] = min(left, lanes)
    for axis in sorted(lowering.order, key=lambda axis: (most[axis] == left, -axis)):
        block[axis] = candidates.equal_parts(extents[axis], min(left, most[axis]))[0]
        left = max(1, left // block[axis])
    return block[0], block[1], block[2], block[3]


def _cycles(kernel: LoweredProduct, target: Target) -> float:
    """Estimated cycles of one core, idle ones beside it counted."""
    conv, sums, costs, tile = kernel.conv, kernel.sums, target.costs, kernel.tile
    tiles = _tile_cycles(kernel, target)
    products = tiles * kernel.strips * sums.blocks * sums.count
    vector = costs.transposed_vector
    if conv.y.lanes_contiguous:
        vector = 2 * costs.vector_move
    copied = conv.batch * prod(conv.window.out) * sums.blocks * sums.count * tile.vectors * vector
    written = sums.taps * conv.inputs * sums.count * tile.vectors * costs.transposed_vector
    passes = ceil_div(sums.count, kernel.per_chunk)
    stream = passes * _lines(kernel) * _line_cycles(kernel, target)
    cycles = conv.groups * (costs.overlapped(products, stream) + copied + written)
    return cycles * candidates.idle(kernel.chunks)


def _tile_cycles(kernel: LoweredProduct, target: Target) -> float:
    """Cycles of all tiles of a chunk's channels, over one block of pixels and a panel."""
    run, tile = kernel.run(kernel.channels), kernel.tile
    ranked = rank_tiles(target, run, tile.vectors, prod(kernel.block))
    cycles = next(cycles for cycles, each in ranked if each == tile)
    return cycles * (kernel.channels * kernel.sums.taps / run)


def _lines(kernel: LoweredProduct) -> float:
    """Cache lines of a group's part of the lowered tensor; runs of channels begin within some."""
    conv, item = kernel.conv, kernel.conv.dtype.bytes
    size, run = conv.x.image * conv.batch * item, kernel.run(kernel.channels) * item
    whole = run % ALIGNMENT == 0 or kernel.sums.blocks == 1
    return float(size / ALIGNMENT * (1 if whole else (run + ALIGNMENT) / run))


def _line_cycles(kernel: LoweredProduct, target: Target) -> float:
    """Cycles of a line of the lowered tensor, of L2 or by whether prefetchers follow its pixels."""
    conv, costs = kernel.conv, target.costs
    size = conv.x.block_stride * conv.groups * conv.dtype.bytes
    if size <= costs.l2_share * target.l2_bytes:
        return ALIGNMENT / costs.l2_read
    far = 2 * _step(conv, kernel.order) > costs.l1_way_bytes
    return costs.strided_line if far else costs.prefetched_line


def _step(conv: Conv, order: tuple[int, ...]) -> int:
    """Bytes of a lowered tensor from one pixel to the next."""
    axis = order[-1] - 1
    return conv.window.stride[axis] * conv.x.spatial[axis] * conv.dtype.bytes


# -- the methods ----------------------------------------------------------------------------------
_Of = Callable[[Problem, Target, int], Lowering]


def _candidate(
    name: str,
    of: _Of,
    usual: int | str,
    problem: Problem,
    target: Target,
    given: LoweringParameters,
) -> Candidate:
    """Lower some images, multiply, and so on: lots of images, the last one of what is left."""
    conv = problem.conv
    images = given.images or usual
    most = conv.batch if images == BATCH else min(int(images), conv.batch)
    lots = [most] * (conv.batch // most) + ([conv.batch % most] if conv.batch % most else [])
    uses: list[KernelUse] = []
    done = size = length = 0
    details = ""
    for count in lots:
        lowering = of(problem, target, count)
        unfolding, (_, kernel) = lowering.unfolding, planned(lowering, target)
        group = unfolding.elements * count
        rows = candidates.unfold_rows(unfolding, count * conv.groups, target.costs)
        unfold = Unfold(unfolding, count, conv.groups, unfolding.elements, group, rows, first=done)
        kernel = replace(kernel, first=done, adds=done > 0, sums_dy=problem.sums_dy)
        uses.append(KernelUse(unfold, ("x", "lowered")))
        uses.append(KernelUse(kernel, kernel.operands))
        size = max(size, group * conv.groups * conv.dtype.bytes)
        length = max(length, prod(kernel.block) + kernel.strips)
        details = details or f"images={count}, tile {kernel.tile.rows}x{kernel.tile.vectors}"
        done += count
    error = walk_error(problem, min(products(problem), length + len(lots)))
    choice = Choice(name, replace(given, images=images), error=error)
    return Candidate(choice, tuple(uses), temporaries={"lowered": size}, details=details)


def _elements(name: str, problem: Problem) -> int:
    """Elements of the lowered tensors of all images: what is moved."""
    if name == "mec":
        return mec.unfolded_elements(problem)
    return problem.conv.batch * im2col.matrix_elements(problem)


def _reject(problem: Problem, target: Target) -> str | None:
    if problem.conv.batch > _MOST_LOTS:
        return f"{problem.conv.batch} images; at most {_MOST_LOTS}"
    return candidates.reject(problem, target)


def _method(name: str, of: _Of, usual: int | str) -> Algorithm[LoweringParameters]:
    """A method of the gradient, by its lowering and the images that it lowers at a time."""

    def make(problem: Problem, target: Target, given: LoweringParameters) -> Candidate:
        return _candidate(name, of, usual, problem, target, given)

    def cost(problem: Problem, target: Target) -> float:
        product, _ = planned(of(problem, target, problem.conv.batch), target)
        return product + target.costs.element_move * _elements(name, problem)

    def choices(problem: Problem, target: Target, lean: bool) -> list[Choice]:
        cycles, many = cost(problem, target), lean and problem.conv.batch > 1
        lots = dict.fromkeys((usual, *(_OTHER_LOTS if many else ())))
        parameters = (LoweringParameters(images=lot) for lot in lots)
        return [Choice(name, each, cycles) for each in parameters]

    return Algorithm(
        name,
        LoweringParameters,
        _reject,
        cost,
        make,
        automatic=False,
        choices=choices,
        takes_halves=False,
    )


IM2COL = _method("im2col", _of_im2col, 1)
MEC = _method("mec", _of_mec, BATCH)

"""The direct gradient of weights as a method: blocks, register tile, estimated cycles."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import gcd, prod

from leanconv.algorithms.common.conv import Conv, merge_rows, with_conv
from leanconv.algorithms.interface import Algorithm, Candidate, KernelUse
from leanconv.algorithms.parameters import Choice, Parameters
from leanconv.algorithms.problem import Problem, typical, walk_error
from leanconv.algorithms.weight_gradient.bias import with_rows_added
from leanconv.algorithms.weight_gradient.direct_kernel import DirectGradient
from leanconv.algorithms.weight_gradient.direct_tiles import is_planes
from leanconv.algorithms.weight_gradient.strips import INTERLEAVED, are_alike
from leanconv.algorithms.weight_gradient.sums import AddParts
from leanconv.codegen.geometry import Access, triple
from leanconv.codegen.tiling import Tile, fits, step_cycles
from leanconv.records import replace
from leanconv.spec.conv import effective_extent
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.target import Target

_L1_SHARE = 0.5  # of L1 that a panel of dy may fill, which each tile reads
_L2_SHARE = 0.5  # of L2 that a strip of x may fill, and the sums of a chunk
_SHOWN = 0.4  # of a stream that is prefetched, the part that products do not hide
_WIDEST = 256  # channels of a chunk
_MOST_VECTORS = 4  # of a panel
_SHAPES = 4  # of blocks and panels whose chunks are compared
_CHUNKS = 16  # so that any number of threads is kept busy


def _tile_rows(target: Target, span: int, vectors: int) -> tuple[float, int]:
    """The cycles of a step of all tiles that cover a span, and the rows of the best tile."""
    best: tuple[float, int] | None = None
    for most in range(1, span + 1):
        if not fits(target, most, vectors):
            break
        rows = ceil_div(span, ceil_div(span, most))
        whole, rest = divmod(span, rows)
        cycles = whole * step_cycles(target, rows, vectors)
        cycles += step_cycles(target, rest, vectors) if rest else 0.0
        if best is None or cycles <= best[0]:
            best = cycles, rows
    assert best is not None
    return best


def _widths(conv: Conv, lanes: int) -> list[int]:
    """Numbers of channels of a block: all of a group, or whole vectors of them, evenly divided."""
    found = {conv.inputs: None} if conv.inputs <= _WIDEST else {}
    most = lanes
    while most <= min(_WIDEST, conv.inputs):
        even = ceil_div(conv.inputs, ceil_div(conv.inputs, most))
        found[ceil_div(even, lanes) * lanes] = None
        most *= 2
    return list(found)


def _blocked(kernel: DirectGradient, target: Target) -> DirectGradient:
    """Choose the outputs of a strip: a panel of dy in L1, x in L2."""
    conv, item = kernel.conv, kernel.panels.dtype.bytes
    _, height, width = conv.window.out
    most_dy = int(_L1_SHARE * target.l1_bytes) // item
    most_x = int(_L2_SHARE * target.l2_bytes) // item

    def fit(images: int, rows: int, columns: int) -> bool:
        made = replace(kernel, images=images, rows=rows, columns=columns)
        return made.read <= most_x and made.panel_read <= most_dy

    def largest(extent: int, fits: list[bool]) -> int:
        most = max(1, sum(fits))
        return ceil_div(extent, ceil_div(extent, most))

    if not fit(1, 1, width):
        low, high = 1, width
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fit(1, 1, middle) else (low, middle - 1)
        columns = ceil_div(width, ceil_div(width, low))
        return replace(kernel, images=1, rows=1, columns=columns)
    if not fit(1, height, width):
        rows = next(r for r in range(1, height + 1) if not fit(1, r + 1, width))
        rows = ceil_div(height, ceil_div(height, rows))
        return replace(kernel, images=1, rows=rows, columns=width)
    images = 1 if kernel.in_place and conv.window.out[0] > 1 else kernel.depths
    if not fit(images, height, width):
        images = next(i for i in range(1, images + 1) if not fit(i + 1, height, width))
        images = ceil_div(kernel.depths, ceil_div(kernel.depths, images))
    return replace(kernel, images=images, rows=height, columns=width)


def _copy_cycles(access: Access, elements: int, channels: int, lanes: int, target: Target) -> float:
    """Cycles to copy elements of so many channels into a strip."""
    costs = target.costs
    pixels = elements / channels
    vectors = pixels * ceil_div(channels, lanes)
    if are_alike(access, channels):
        return 2 * costs.vector_move * elements / lanes
    if access.lanes_contiguous:
        return 2 * costs.vector_move * vectors
    if channels <= INTERLEAVED:
        return costs.transposed_vector * elements / lanes
    return costs.transposed_vector * vectors


def _cycles(kernel: DirectGradient, target: Target, per_step: float) -> float:
    """Estimated cycles of one core; `per_step`: of all tiles of a block and a panel, a pixel."""
    conv, panels, costs = kernel.conv, kernel.panels, target.costs
    window, lanes, wide = conv.window, kernel.lanes, kernel.panels.wide
    strips, pixels = prod(kernel.strips), kernel.depths * prod(window.out[1:])
    again_x, again_dy = panels.chunks[1], panels.chunks[0]
    copied = 0.0 if kernel.in_place else panels.blocks * again_x * strips
    if copied:
        copied *= _copy_cycles(conv.x, kernel.copied[0], kernel.width, lanes, target)
    if not kernel.dy_in_place:
        dy = _copy_cycles(conv.y, pixels * wide, wide, lanes, target)
        copied += panels.count * again_dy * dy
    arithmetic = per_step * _live_share(kernel) * pixels * panels.blocks * panels.count
    rows = panels.taps * conv.inputs
    vectors = rows * panels.count * kernel.tile.vectors
    tiles = rows / kernel.span * ceil_div(kernel.span, kernel.tile.rows)
    lines = strips * kernel.images * (1 if window.is_pointwise else kernel.rows)
    ends = costs.accumulator * vectors * strips
    ends += costs.tile * tiles * panels.count * (strips + lines)
    moved = again_x * conv.input_bytes + again_dy * conv.output_bytes
    sums = vectors * lanes * panels.dtype.bytes
    written = costs.transposed_vector * vectors
    if kernel.split:
        written += costs.moved(2 * sums * kernel.parts, target.l2_bytes)
    stream = 0.0
    if kernel.prefetch:
        stream = moved / costs.l3_or_dram_read(moved, target.l3_bytes)
    work = conv.groups * (copied + arithmetic + ends + written)
    # What lies in short runs is prefetched line by line, in no order that DRAM would like.
    apart = conv.x.block_stride == 1 and (again_dy > 1 or conv.groups > 1)
    return work + stream * (1.0 if apart else _SHOWN)


def _live_share(kernel: DirectGradient) -> float:
    """The share of products that are computed: some of those with padding are left out."""
    window, share = kernel.conv.window, 1.0
    for axis in (1, 2):
        if axis == 1 or not kernel.joined:
            share *= window.live_taps(axis) / (window.out[axis] * window.kernel[axis])
    return share


def takes_in_place(conv: Conv, rows: int, width: int, target: Target) -> bool:
    """Return whether tiles of so many rows, of blocks of so many channels, may read x as it is.

    Windows may have no padding. Rows are neighbours, of pixels that share pages, or planes whose
    lines are in different sets of L1.
    """
    window, access, way = conv.window, conv.x, target.costs.l1_way_bytes
    if not all(map(window.always_full, range(3))):
        return False
    if not is_planes(access):
        aligned = conv.groups == 1 or conv.inputs % access.block == 0
        near = access.spatial[2] * conv.precision.x.bytes < way
        return near if access.block == 1 else access.block == width and aligned
    apart = access.block_stride * conv.precision.x.bytes % way
    sets = way // max(ALIGNMENT, gcd(apart, way)) if apart else 1
    return rows <= sets * target.costs.l1_ways // 2


def _open(conv: Conv, lanes: int, vectors: int, width: int, prefetch: bool) -> DirectGradient:
    """A kernel of blocks and panels, whose tile and strips are to be chosen."""
    return DirectGradient(
        conv=conv,
        lanes=lanes,
        tile=Tile(1, vectors),
        width=width,
        blocks_per_chunk=1,
        panels_per_chunk=1,
        images=1,
        rows=1,
        columns=1,
        joined=False,
        apart=True,
        parts=1,
        split=False,
        in_place=False,
        prefetch=prefetch,
    )


def _shaped(problem: Problem, target: Target) -> Iterator[tuple[float, DirectGradient]]:
    """Register tiles, blocks of channels and strips, with the cycles of a pixel's products."""
    conv = merge_rows(problem.conv)
    lanes, window = conv.lanes(target), conv.window
    dilated = window.kernel[1] > 1 and window.dilation[1] > 1
    prefetch = conv.input_bytes + conv.output_bytes > _L2_SHARE * target.l2_bytes
    for vectors in range(1, min(_MOST_VECTORS, ceil_div(conv.outputs, lanes)) + 1):
        for width in _widths(conv, lanes):
            base = _open(conv, lanes, vectors, width, prefetch)
            placed = [replace(base, in_place=True)]
            copied = [replace(base, apart=window.kernel[1] == 1)] + [base] * dilated
            for made in (*placed, *copied):
                for kernel in (made, replace(made, joined=True)):
                    if kernel.joined and not kernel.may_join:
                        continue
                    if not kernel.joined and kernel.may_join and window.kernel[2] == 1:
                        continue
                    cycles, rows = _tile_rows(target, kernel.span, vectors)
                    if kernel.in_place and not takes_in_place(conv, rows, width, target):
                        continue
                    kernel = replace(kernel, tile=Tile(rows, vectors))
                    each = cycles * kernel.panels.taps * width / kernel.span
                    yield each, _blocked(kernel, target)


def _plans(problem: Problem, target: Target) -> Iterator[tuple[float, float, DirectGradient]]:
    """Plans of the best shapes: cycles as they are compared, of one core, and the kernel."""
    limit = int(_L2_SHARE * target.l2_bytes) // problem.conv.precision.accumulate.bytes
    shapes = []
    for per_step, kernel in _shaped(problem, target):
        usual = next(_chunked(kernel, limit))
        shapes.append((_cycles(usual, target, per_step), per_step, kernel))
    for _, per_step, kernel in sorted(shapes, key=lambda shape: shape[0])[:_SHAPES]:
        for made in _chunked(kernel, limit):
            divided = _divided(made, target, per_step)
            cycles = _cycles(divided, target, per_step)
            idle = _wanted_chunks(cycles, target) / prod(divided.grid)
            yield cycles * max(1.0, idle), cycles, divided


def _wanted_chunks(cycles: float, target: Target) -> int:
    """Chunks that keep any number of threads busy, where each is worth claiming."""
    return min(_CHUNKS, int(cycles / target.costs.chunk))


def _chunked(kernel: DirectGradient, limit: int) -> Iterator[DirectGradient]:
    """Chunks of several sizes: their strips of x, and their sums, are below a limit of elements."""
    panels = kernel.panels
    for panels_per_chunk in _divisions(panels.count):
        for blocks_per_chunk in _divisions(panels.blocks):
            sums = panels_per_chunk * blocks_per_chunk * panels.elements
            x = blocks_per_chunk * kernel.read
            if blocks_per_chunk * panels_per_chunk == 1 or max(sums, x) <= limit:
                yield replace(
                    kernel, blocks_per_chunk=blocks_per_chunk, panels_per_chunk=panels_per_chunk
                )


def _divisions(count: int) -> list[int]:
    """Sizes of one chunk of all, two, four and so on."""
    found: dict[int, None] = {}
    chunks = 1
    while chunks < 2 * count:
        found[ceil_div(count, chunks)] = None
        chunks *= 2
    return list(found)


def _divided(kernel: DirectGradient, target: Target, per_step: float) -> DirectGradient:
    """Divide the strips into parts, where chunks are fewer than threads may be."""
    cycles, chunks = _cycles(kernel, target, per_step), prod(kernel.grid)
    wanted = _wanted_chunks(cycles, target)
    strips = prod(kernel.strips)
    parts = min(strips, ceil_div(wanted, chunks)) if wanted > chunks else 1
    if parts <= 1:
        return kernel
    parts = ceil_div(strips, ceil_div(strips, parts))
    return replace(kernel, parts=parts, split=True)


@lru_cache(maxsize=256)
def _planned(problem: Problem, target: Target) -> tuple[float, DirectGradient]:
    if problem.any_size:
        return _of_any_size(problem, target)
    _, cycles, kernel = min(_plans(problem, target), key=lambda plan: plan[0])
    return cycles, kernel


def _of_any_size(problem: Problem, target: Target) -> tuple[float, DirectGradient]:
    """The kernel for maps of the usual size, whose strips and parts are those of this one."""
    given, found = problem.conv.window, typical(problem)
    window, size = found.conv.window, list[int]()
    for axis, full in enumerate(window.size):  # padding decides whether tiles read x in place
        before, step = given.pad[axis], given.stride[axis]
        reach = effective_extent(given.kernel[axis], given.dilation[axis]) - before
        behind = (given.out[axis] - 1) * step + reach - given.size[axis]
        # How much is behind x depends on what a stride leaves.
        size.append(full - before - (before if before > 0 else max(behind, 0)))
    found = with_conv(found, window=replace(window, size=triple(tuple(size), 1), pad=given.pad))
    usual = _planned(replace(found, any_size=()), target)[1]
    per_step = _tile_rows(target, usual.span, usual.tile.vectors)[0]
    per_step *= usual.panels.taps * usual.width / usual.span
    kernel = replace(usual, conv=merge_rows(problem.conv), parts=1, prefetch=True)
    kernel = _divided(_blocked(kernel, target), target, per_step)
    return _cycles(kernel, target, per_step), replace(kernel, split=True)


def _reject(problem: Problem, target: Target) -> str | None:
    del problem, target
    return None


def _cost(problem: Problem, target: Target) -> float:
    return _planned(problem, target)[0]


def _error(problem: Problem, kernel: DirectGradient) -> float:
    """Products of a strip are added one after the other, then the sums of strips."""
    strips = prod(kernel.strips)
    return walk_error(problem, kernel.images * kernel.rows * kernel.columns + strips)


def _candidate(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    del parameters
    alone = replace(problem, sums_dy=False)  # so that dw is the same with it and without
    return made(problem, _planned(alone, target)[1])


def made(problem: Problem, kernel: DirectGradient) -> Candidate:
    """The candidate of a kernel, and of what adds the parts of its sums."""
    kernel = replace(kernel, sums_dy=problem.sums_dy)
    choice = Choice("direct", error=_error(problem, kernel))
    tile, strip = kernel.tile, f"{kernel.images}x{kernel.rows}x{kernel.columns}"
    channels = f"{kernel.blocks_per_chunk} x {kernel.width} channels"
    channels += " in place" if kernel.in_place else ""
    details = f"tile {tile.rows}x{tile.vectors}, {channels}, strips of {strip}"
    if not kernel.split:
        use = KernelUse(kernel, kernel.operands)
        return with_rows_added(Candidate(choice, (use,), details=details), problem, 1)
    add = AddParts(kernel.panels, kernel.conv.groups, kernel.parts)
    uses = KernelUse(kernel, kernel.operands), KernelUse(add, add.operands)
    size = kernel.parts * kernel.part_elements * kernel.panels.dtype.bytes
    candidate = Candidate(choice, uses, temporaries={"parts": size}, details=details)
    return with_rows_added(candidate, problem, kernel.parts)


DIRECT = Algorithm("direct", Parameters, _reject, _cost, _candidate)

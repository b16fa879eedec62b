"""Choice of how a convolution by matrix tiles is cut, and its cost.

Tensors of floats that lie plain are brought into blocks of channels before tiles, and back behind:

    x (N, C, H, W) or (N, H, W, C)  ->  "x.blocks"  -> tiles ->  "y.blocks"  ->  y

A tile's rows are channels of one pixel, and its columns are stored as such: both are blocks of
channels. The copies take little time beside products that tiles take a tenth of the time for.
"""

from __future__ import annotations

from leanconv.algorithms.amx.kernel import TileConv
from leanconv.algorithms.common.conv import batch_as_columns, gives_pixels, merge_rows, with_conv
from leanconv.algorithms.interface import Algorithm, Candidate, KernelUse, one_kernel_candidate
from leanconv.algorithms.parameters import Choice, Parameters
from leanconv.algorithms.problem import Problem, dram_cycles, factors_error, sum_error
from leanconv.codegen.geometry import Access, Triple, Window
from leanconv.codegen.matrix_tiles import COLUMNS, ROWS, TILE_BYTES, multiplies
from leanconv.kernels.copy import Copy
from leanconv.kernels.copy_plan import reorder
from leanconv.records import replace
from leanconv.spec import NHWC, PLAIN, Format
from leanconv.spec.format import ceil_div
from leanconv.symbolic import least, most
from leanconv.target import Target
from leanconv.types import BFLOAT16, FLOAT32, INT8, INT32, UINT8, DType, Precision

_BLOCKS = Format(COLUMNS)
Shape = tuple[int, ...]


def in_blocks(problem: Problem, keeps_x: bool) -> Problem:
    """The problem with blocks of channels for floats that are plain arrays, where they are.

    Args:
        problem: the convolution.
        keeps_x: whether the input is read as it lies.
    """
    conv = problem.conv
    if problem.any_size or not conv.precision.accumulate.is_float:
        return problem
    x, y = conv.x, conv.y
    if not keeps_x and not conv.x_offset and _is_plain(x, _x_shape(problem)):
        x = Access.of_format(_x_shape(problem), _BLOCKS)
    if not conv.y_offset and _is_plain(y, _y_shape(problem)):
        y = Access.of_format(_y_shape(problem), _BLOCKS)
    return problem if (x, y) == (conv.x, conv.y) else with_conv(problem, x=x, y=y)


def reorder_cycles(problem: Problem, blocked: Problem, target: Target) -> float:
    """Estimated cycles of bringing plain tensors into blocks and back."""
    costs, total = target.costs, 0.0
    for size, _ in _moved(problem, blocked).values():
        total += 2 * size / costs.dram_copy + costs.stage
    return total


def with_reorders(candidate: Candidate, problem: Problem, blocked: Problem) -> Candidate:
    """The candidate of the problem in blocks, for the problem as it is."""
    moved = _moved(problem, blocked)
    if not moved:
        return candidate
    (use,) = candidate.kernels
    roles = tuple(f"{role}.blocks" if role in moved else role for role in use.roles)
    uses = [KernelUse(use.kernel, roles)]
    for role, (_, kernel) in moved.items():
        if role != "y" and role in use.roles:
            uses.insert(0, KernelUse(kernel, (role, f"{role}.blocks")))
    if "y" in moved:
        uses.append(KernelUse(moved["y"][1], ("y.blocks", "y")))
    sizes = {f"{role}.blocks": size for role, (size, _) in moved.items()}
    return replace(candidate, kernels=tuple(uses), temporaries=sizes)


def _moved(problem: Problem, blocked: Problem) -> dict[str, tuple[int, Copy]]:
    """Return the tensors to reorder, by role: bytes in blocks, and the kernel."""
    conv = problem.conv
    types, found = conv.precision, {}
    x, y = _x_shape(problem), _y_shape(problem)
    if conv.x != blocked.conv.x:
        kernel = _reordered(x, types.x, conv.x)
        found["x"] = _BLOCKS.elements(x) * types.x.bytes, kernel
    if conv.y != blocked.conv.y:
        size = _BLOCKS.elements(y) * types.y.bytes
        if conv.epilogue.residual:
            found["residual"] = size, _reordered(y, types.y, conv.y)
        found["y"] = size, _reordered(y, types.y, conv.y, back=True)
    return found


def _reordered(shape: Shape, dtype: DType, plain: Access, back: bool = False) -> Copy:
    """The kernel that brings a plain tensor into blocks, or back."""
    given = NHWC if plain.block_stride == 1 else PLAIN
    source, target = (_BLOCKS, given) if back else (given, _BLOCKS)
    return reorder(shape, dtype, source, target)


def _is_plain(access: Access, shape: Shape) -> bool:
    """Return whether a tensor is a plain array, with channels first or last."""
    return access in (Access.of_format(shape, form) for form in (PLAIN, NHWC))


def _x_shape(problem: Problem) -> Shape:
    conv = problem.conv
    return (conv.batch, conv.in_channels, *conv.window.size)


def _y_shape(problem: Problem) -> Shape:
    conv = problem.conv
    return (conv.batch, conv.out_channels, *conv.window.out)


_CHUNKS = 16  # so that any number of threads is kept busy
_SHARE = 8  # parts of L2: a chunk's input takes one at most, and so do weights that are read again
_LEAST_CYCLES = 13  # of a product of tiles: sums wait for the one before
_LEAST_TILES = 8  # of a chunk, for which weights are read from L2
_GROUP = 4  # channels of an input that fill no more than a step of a dot product
_TOGETHER = 4  # tiles of sums, of eight registers


def _takes(precision: Precision) -> bool:
    given = (precision.x, precision.w)
    if precision.accumulate == FLOAT32:
        return all(dtype in (FLOAT32, BFLOAT16) for dtype in (*given, precision.y))
    bytes_ = all(dtype in (INT8, UINT8) for dtype in given)
    stored = precision.y in (INT8, UINT8, INT32, FLOAT32)
    return bytes_ and stored and precision.accumulate == INT32


def _reject(problem: Problem, target: Target) -> str | None:
    types = problem.conv.precision
    if not multiplies(types, target):
        return f"the target has no matrix tiles for {types.x} by {types.w}"
    problem = _in_blocks(problem)
    few = _GROUP if types.x.bytes == 1 else COLUMNS
    blocks = problem.conv.x.block in (COLUMNS, few) or _has_few_planes_of_floats(problem)
    if problem.conv.y.block != COLUMNS or not blocks:
        return f"tensors do not lie in blocks of {COLUMNS} channels"
    if problem.conv.x.block == _GROUP < problem.conv.in_channels:
        return f"{problem.conv.in_channels} channels in blocks of {_GROUP}"
    if not problem.conv.window.is_flat:
        return "its window has three axes"
    if problem.conv.y_offset or problem.conv.x_offset:
        return "its tensors are parts of others"
    if problem.conv.epilogue.activation and not types.accumulate.is_float:
        return f"an activation of sums in {types.accumulate}"
    if problem.conv.groups == 1:
        return None
    for channels, side in ((problem.conv.inputs, "input"), (problem.conv.outputs, "output")):
        if channels % COLUMNS:
            return f"groups of {channels} {side} channels do not fill blocks of {COLUMNS} channels"
    return None


def _has_few_planes_of_floats(problem: Problem) -> bool:
    conv = problem.conv
    planes = conv.x.block == 1 == conv.x.spatial[2] == conv.groups
    return planes and conv.precision.x.is_float and conv.in_channels <= _GROUP


def _in_blocks(problem: Problem) -> Problem:
    """The problem with blocks of channels where floats are plain arrays."""
    return in_blocks(problem, keeps_x=_has_few_planes_of_floats(problem))


def _kernel(problem: Problem, target: Target) -> TileConv:
    """The kernel for a problem: tiles, rows of a chunk, parts of the outputs."""
    conv = problem.conv
    panels = 1 if conv.outputs <= COLUMNS else 2
    kernel = TileConv(conv, pixels=ROWS, tiles=_TOGETHER // panels, panels=panels, rows=1)
    if gives_pixels(conv.window):
        columns = batch_as_columns(kernel)
        kernel = columns if columns.conv.window.kernel[0] == 1 else kernel
    window, x = _without_gaps(kernel.conv.window, kernel.conv.x)
    kernel = replace(with_conv(kernel, window=window, x=x), rows=window.out[1])
    kernel = _any_width(kernel) if problem.any_size else _of_width(kernel)
    return replace(_cut(kernel, target), ahead=_ahead(problem, kernel, target))


def _any_width(kernel: TileConv) -> TileConv:
    """Tiles for rows of any width: whole ones, which go on in the next row where that is possible.

    Of shorter ones a code would be that of few widths.
    """
    kernel = replace(kernel, any_width=True)
    return next(iter(_flat(kernel)), kernel)


def _of_width(kernel: TileConv) -> TileConv:
    """Tiles for rows of this width: equal ones, or such that go on in the next row."""
    conv = merge_rows(kernel.conv, _good_width)
    window, kernel = conv.window, replace(kernel, conv=conv, rows=conv.window.out[1])
    across = ceil_div(window.out[2], ROWS)
    kernel = replace(kernel, pixels=ceil_div(window.out[2], across))
    kernel = min((kernel, *_flat(kernel)), key=_product_cycles)
    if 2 < _tiles(kernel) <= 2 * _TOGETHER:
        kernel = replace(kernel, tiles=_TOGETHER, panels=1)  # weights are read once or twice
    return kernel


def _ahead(problem: Problem, kernel: TileConv, target: Target) -> int:
    """Return how far ahead to prefetch weights that no near cache holds."""
    if not problem.weights_from_dram and kernel.constant_bytes["w"] <= target.l2_bytes:
        return 0
    fits = kernel.pair_bytes <= target.l2_bytes // _SHARE
    return kernel.pair_bytes if fits else target.costs.direct_prefetch_bytes


def _flat(kernel: TileConv) -> list[TileConv]:
    """The kernel with tiles that go on in the next row, where that is possible."""
    if kernel.windows or kernel.conv.window.stride[1:] != (1, 1):
        return []
    return [replace(kernel, pixels=ROWS, flat=True)]


def _tiles(kernel: TileConv) -> int:
    """Tiles of columns of all rows of a map."""
    rows, width = kernel.conv.window.out[1:]
    if not kernel.flat:
        return rows * kernel.tiles_across
    return ceil_div((rows - 1) * kernel.columns + width, kernel.pixels)


def _without_gaps(window: Window, x: Access) -> tuple[Window, Access]:
    """The window of an input of which only those rows and columns exist that a 1x1 kernel reads."""
    size, step, apart = list(window.size), list(window.stride), list(x.spatial)
    for axis in (1, 2):
        if window.kernel[axis] == 1 and window.always_full(axis) and window.pad[axis] == 0:
            apart[axis] *= step[axis]
            size[axis], step[axis] = window.out[axis], 1
    moved = replace(window, size=_triple(size), stride=_triple(step))
    return moved, replace(x, spatial=_triple(apart))


def _triple(values: list[int]) -> Triple:
    d, h, w = values
    return d, h, w


def _good_width(total: int) -> int:
    """A divisor of the map that makes rows of whole tiles, or nearly so."""
    usable = [w for w in range(ROWS, ROWS * ROWS + 1) if total % w == 0] or [total]
    return min(usable, key=lambda w: (ceil_div(w, ROWS) * ROWS * total // w, -w))


def _cut(kernel: TileConv, target: Target) -> TileConv:
    """Cut into chunks that are worth claiming: rows whose input fits L2, parts of the outputs.

    Chunks of other rows read all weights again; parts of the outputs, the input.
    """
    limit, height = target.l2_bytes // _SHARE, kernel.conv.window.out[1]
    cycles, costs = _product_cycles(kernel), target.costs
    images, rows = kernel.conv.batch * kernel.conv.groups, height
    if kernel.constant_bytes["w"] <= limit:
        fewest = ceil_div(_LEAST_TILES * height, _tiles(kernel))
        rows = least(height, most(fewest, height * images // _pieces(cycles, costs.chunk)))
    one = replace(kernel, rows=1)
    each = replace(kernel, rows=2).scratch_bytes - one.scratch_bytes
    rows = least(rows, most(1, 1 + (limit - one.scratch_bytes) // each))
    kernel = replace(kernel, rows=ceil_div(height, ceil_div(height, rows)))
    parts = ceil_div(_pieces(cycles, costs.least_chunk), images * kernel.row_blocks)
    return replace(kernel, panel_blocks=least(kernel.panel_pairs, parts))


def _pieces(cycles: int, each: float) -> int:
    """Into how many chunks so many cycles may be cut, of `each` or so."""
    size = round(each)
    found: int = least(_CHUNKS, most(1, (cycles + size // 2) // size))
    return found


def _product_cycles(kernel: TileConv) -> int:
    """Cycles of all products: one for each row of a tile, and so many at least."""
    images = kernel.conv.batch * kernel.conv.groups * kernel.panel_pairs * kernel.panels
    return images * _tiles(kernel) * kernel.steps * max(kernel.pixels, _LEAST_CYCLES)


def _cost(problem: Problem, target: Target) -> float:
    """Products beside the epilogue, the longer of which hides a part of the other; repacking."""
    blocked = _in_blocks(problem)
    if blocked is not problem:
        return _cost(blocked, target) + reorder_cycles(problem, blocked, target)
    kernel, costs = _kernel(problem, target), target.costs
    maps = kernel.conv.batch * kernel.conv.groups
    across = ceil_div(_tiles(kernel), kernel.tiles) * kernel.tiles  # of which some may be empty
    tiles = maps * across * kernel.panel_pairs * kernel.panels
    products = kernel.steps * tiles * max(kernel.pixels, _LEAST_CYCLES) * (costs.amx_row or 1.0)
    if kernel.pair_bytes > target.l1_bytes // 2:  # of other blocks, which read the same weights
        read = kernel.steps * TILE_BYTES / costs.l2_read * tiles / kernel.tiles
        products = costs.overlapped(products, read)
    products += (costs.amx_block or 0.0) * tiles / _TOGETHER
    ends = (costs.amx_sum or 0.0) + (costs.amx_residual or 0.0) * kernel.conv.epilogue.residual
    epilogue = ends * tiles * kernel.pixels
    lines = kernel.tap_groups * kernel.out_columns if kernel.windows else kernel.columns
    moved = maps * kernel.row_blocks * kernel.stored_rows * lines * kernel.parts
    moved += moved * (kernel.tap_rows - 1) // 2  # a window of several rows takes longer
    cycles = max(products, epilogue) + min(products, epilogue) / 2
    cycles += moved * (costs.amx_line or 0.0)
    weights = kernel.constant_bytes["w"]
    if problem.weights_from_dram:
        return cycles + dram_cycles(problem, target, weights)
    stream = weights / costs.l3_read if weights > costs.l2_share * target.l2_bytes else 0.0
    return costs.overlapped(cycles, stream)


def _candidate(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    del parameters
    blocked = _in_blocks(problem)
    kernel = _kernel(blocked, target)
    details = f"{kernel.tiles}x{kernel.panels} tiles of {kernel.pixels}x{COLUMNS}"
    if kernel.factor == BFLOAT16:
        details += " in bfloat16"
    choice = Choice("amx", error=_error(problem))
    found = one_kernel_candidate(choice, blocked, kernel, details)
    return with_reorders(found, problem, blocked)


def _error(problem: Problem) -> float:
    """Return the error of rounding to bfloat16 and of another order of sums; 0 of integers."""
    if not problem.conv.precision.accumulate.is_float:
        return 0.0
    return _error_of_rounded_operands(problem) + sum_error(problem)


def _error_of_rounded_operands(problem: Problem) -> float:
    given = problem.conv.precision.x, problem.conv.precision.w
    return factors_error(BFLOAT16) if FLOAT32 in given else 0.0


def _offered_from(problem: Problem) -> list[float]:
    return [_error(problem)] if problem.conv.precision.accumulate.is_float else []


AMX = Algorithm(
    "amx",
    Parameters,
    _reject,
    _cost,
    _candidate,
    plausible=lambda problem: _error_of_rounded_operands(problem) <= problem.max_error,
    precisions=_takes,
    offered_from=_offered_from,
    takes_halves=False,  # but bfloat16, which it multiplies as it is
)

"""The candidates of Winograd: the kernels of a choice, fused or in stages, and their constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from leanconv.algorithms.common.conv import Conv, with_conv
from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.direct.shape import PackedConv
from leanconv.algorithms.interface import Candidate, KernelUse, PackingOf
from leanconv.algorithms.parameters import Choice
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.winograd.cost import MOST_STAGED_ROWS, staged_transform_cycles
from leanconv.algorithms.winograd.kernel import WinogradConv
from leanconv.algorithms.winograd.packing import weight_calls
from leanconv.algorithms.winograd.shape import WinogradShape
from leanconv.algorithms.winograd.sizes import Piece, WinogradParameters
from leanconv.algorithms.winograd.stages import Gather, PointProducts, Scatter
from leanconv.codegen.dot import way_of
from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.geometry import Access, Window
from leanconv.codegen.lowered import PackCall
from leanconv.codegen.tiling import Tile, by_lane, rank_tiles, rows_per_chunk
from leanconv.kernels.packing import channels, copied
from leanconv.records import replace
from leanconv.spec.format import ceil_div
from leanconv.target import Target

_L2_PARTS = 4  # of which the rows of V that a chunk multiplies may fill one


# -- fused -------------------------------------------------------------------------------------
def fused(
    problem: Problem, pieces: Sequence[Piece], shapes: Sequence[WinogradShape], error: float
) -> Candidate:
    """One kernel for all pieces that differ only in their offsets in x and y.

    Args:
        problem: the convolution.
        pieces: its pieces.
        shapes: the shape of each piece.
        error: the expected error.
    """
    uses, offsets = _merged(pieces, shapes)
    shape = shapes[0]
    text = f"blocks of {shape.tiles} tiles, {shape.rows}x{shape.vectors}"
    if not shape.any_size:  # else they follow the size, as an expression
        text += f", {shape.parts} part(s)"
    chosen = WinogradParameters(m=shape.m, sums=shape.sums, edges=shape.edges)
    weights = {piece.weights: s.weight_bytes for piece, s in zip(pieces, shapes, strict=True)}
    return Candidate(
        Choice("winograd", chosen, error=error),
        tuple(uses),
        _packing(problem, pieces, shapes, [None] * len(shapes), offsets),
        details=_details(pieces, shape, text) + (", narrow edges" if shape.narrow else ""),
        weight_bytes=sum(weights.values()),
    )


def _merged(
    pieces: Sequence[Piece], shapes: Sequence[WinogradShape]
) -> tuple[list[KernelUse], dict[str, np.ndarray]]:
    """The kernels in order, and by role the offsets (residues, 2) of x and y in elements.

    The cuts of a long kernel run one after the other, as they add up in y; residues of a dilation
    are independent.
    """
    # A list, as shapes may hold symbols, which have no hash.
    alike: list[tuple[int, WinogradShape, list[tuple[Piece, WinogradShape]]]] = []
    for piece, shape in zip(pieces, shapes, strict=True):
        anywhere = with_conv(shape, x_offset=0, y_offset=0)
        equal = (found for cut, one, found in alike if cut == piece.cut and one == anywhere)
        found = next(equal, None)
        if found is None:
            alike.append((piece.cut, anywhere, [(piece, shape)]))
        else:
            found.append((piece, shape))
    uses: list[KernelUse] = []
    offsets: dict[str, np.ndarray] = {}
    for _, anywhere, found in sorted(alike, key=lambda group: group[0]):
        piece, shape = found[0]
        roles = {"w": piece.weights, "residual": "y" if piece.adds_up else "residual"}
        if len(found) > 1:
            roles["offsets"] = f"offsets{len(offsets)}"
            pairs = [(s.conv.x_offset, s.conv.y_offset) for _, s in found]
            offsets[roles["offsets"]] = np.array(pairs, np.int64)
            shape = replace(anywhere, residues=len(found))
        kernel = WinogradConv(shape)
        uses.append(KernelUse(kernel, tuple(roles.get(o, o) for o in kernel.operands)))
    return uses, offsets


# -- in stages ---------------------------------------------------------------------------------
def in_stages(
    problem: Problem,
    target: Target,
    pieces: Sequence[Piece],
    shapes: Sequence[WinogradShape],
    error: float,
) -> Candidate:
    """Scatter, multiply and gather each piece of a problem, one after the other.

    Args:
        problem: the convolution.
        target: the machine.
        pieces: its pieces.
        shapes: the shape of each piece, panels of one vector.
        error: the expected error.
    """
    # All pieces have one register tile: those of one cut share the packed weights.
    shape = shapes[0]
    rows = min(shape.tile_count, MOST_STAGED_ROWS)
    tile = rank_tiles(target, rows, shape.panels, shape.steps)[0][1]
    products = [_products(one, tile, target) for one in shapes]
    input_cycles, output_cycles = staged_transform_cycles(target.costs)
    uses: list[KernelUse] = []
    for piece, one, product in zip(pieces, shapes, products, strict=True):
        scatter = Scatter(one, _tiles_per_chunk(one, target, one.channel_blocks, input_cycles))
        gather = Gather(one, _tiles_per_chunk(one, target, one.panels, output_cycles))
        roles = {"residual": "y"} if piece.adds_up else {}
        uses += [
            KernelUse(scatter, scatter.operands),
            KernelUse(product, ("V", piece.weights, "M")),
            KernelUse(gather, tuple(roles.get(o, o) for o in gather.operands)),
        ]

    temporaries = {"V": 0, "M": 0}
    for one in shapes:
        rows = one.conv.groups * one.points * one.tile_count
        v, m = (
            one.steps * one.transformed.bytes,
            one.conv.outputs * one.conv.precision.accumulate.bytes,
        )
        temporaries["V"] = max(temporaries["V"], rows * v)
        temporaries["M"] = max(temporaries["M"], rows * m)
    tiles = "" if shape.any_size else f"{shape.tile_count} tiles, "
    text = f"in stages, {tiles}{tile.rows}x{tile.vectors}"
    return Candidate(
        Choice("winograd", WinogradParameters(form="stages", m=shape.m), error=error),
        tuple(uses),
        _packing(problem, pieces, shapes, [product.whole for product in products], {}),
        temporaries,
        _details(pieces, shape, text),
    )


def _tiles_per_chunk(shape: WinogradShape, target: Target, vectors: int, cycles: float) -> int:
    """Tiles of one chunk of a transform, which takes `cycles` for each vector of each point."""
    per_tile = shape.points * vectors * cycles
    return rows_per_chunk(shape.tile_count, per_tile, shape.conv.groups, target.costs.chunk)


def _products(shape: WinogradShape, tile: Tile, target: Target) -> PointProducts:
    """Plan the products with a register tile: rows of a block, parts."""
    tiles, steps = shape.tile_count, shape.steps
    room = target.l2_bytes // _L2_PARTS // (steps * shape.transformed.bytes)
    block = min(tiles, tile.rows * max(1, min(room, MOST_STAGED_ROWS) // tile.rows))

    def product(rows: int) -> DirectConv:
        extent = (1, 1, rows)
        outputs = shape.conv.outputs
        conv = Conv(
            batch=1,
            groups=1,
            inputs=steps,
            outputs=outputs,
            window=Window(extent, extent, (1, 1, 1), (1, 1, 1), (1, 1, 1), (0, 0, 0)),
            x=Access(0, 1, 1, (0, 0, steps)),
            y=Access(0, 1, 1, (0, 0, outputs)),
            precision=shape.products,
            epilogue=Epilogue(),
        )
        return DirectConv(
            conv=conv,
            lanes=shape.lanes,
            tile=tile,
            rows=1,
            panels_inside=False,
            by_lane=shape.dot_group == 1 and by_lane(target, tile.rows, tile.vectors),
            way=way_of(shape.products, target),
        )

    whole = product(block)
    cycles = block * steps * shape.panels / target.fma_units
    wanted = min(whole.panels, max(1, round(cycles / target.costs.chunk)))
    return PointProducts(
        points=shape.points * shape.conv.groups,
        tiles=tiles,
        whole=whole,
        last=product((tiles - 1) % block + 1),
        parts=ceil_div(whole.panels, ceil_div(whole.panels, wanted)),
        plain_flops=shape.flops,
    )


# -- both --------------------------------------------------------------------------------------
def _packing(
    problem: Problem,
    pieces: Sequence[Piece],
    shapes: Sequence[WinogradShape],
    products: Sequence[PackedConv | None],
    offsets: Mapping[str, np.ndarray],
) -> PackingOf:
    first = shapes[0]
    width = first.panels * first.panel_lanes

    def packing(w: np.ndarray, given: Mapping[str, np.ndarray]) -> dict[str, list[PackCall]]:
        flat, calls = problem.weights_3d(w)[:, :, 0], dict[str, list[PackCall]]()
        for piece, shape, product in zip(pieces, shapes, products, strict=True):
            if piece.weights not in calls:  # residues share it
                rows, columns = (slice(*taps) for taps in piece.taps)
                calls[piece.weights] = _weight_calls(
                    shape, flat[:, :, rows, columns], product, problem.weights_change
                )
        for name, values in given.items():
            many = name == "quantisation"
            calls[name] = copied(values) if many else channels(values, first.conv.outputs, width)
        return calls | {name: copied(table) for name, table in offsets.items()}

    return packing


def _weight_calls(
    shape: WinogradShape, w: np.ndarray, product: PackedConv | None, changing: bool
) -> list[PackCall]:
    """The calls that transform a piece's weights: in float64, or fast where each run does it."""
    found = None
    if changing:
        from leanconv.algorithms.winograd import weight_tiles  # which constants do without

        found = weight_tiles.weight_calls(shape, w, product)
    return weight_calls(shape, w, product) if found is None else found


def _details(pieces: Sequence[Piece], shape: WinogradShape, text: str) -> str:
    (m_h, m_w), (taps_h, taps_w) = shape.m, shape.taps
    several = f", {len(pieces)} pieces" if len(pieces) > 1 else ""
    return f"F({m_h}x{m_w}, {taps_h}x{taps_w}) {text}{several}"

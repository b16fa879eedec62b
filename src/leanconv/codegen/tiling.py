"""The choice of the register tile, by a cost model of the target.

A tile of `rows x vectors` accumulators needs `rows * vectors >= units * latency` of them to keep
the multiply-add units busy (the lower bound of the im2win thesis, section 3.2.2), and
`rows * vectors + vectors + 1` registers.
"""

from __future__ import annotations

from functools import lru_cache

from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import least, most
from leanconv.target import Target


@dataclass(frozen=True)
class Tile:
    """Accumulators of one register tile: output columns by vectors of output channels."""

    rows: int
    vectors: int


def fits(target: Target, rows: int, vectors: int) -> bool:
    """Return whether accumulators, operands and one broadcast fit the registers."""
    needed = rows * vectors + vectors + 1
    return needed <= target.usable_registers


def by_lane(target: Target, rows: int, vectors: int) -> bool:
    """Return whether multiply-adds take lanes of A: each row keeps a vector, beside one of B."""
    return target.multiplies_by_lane and rows * vectors + rows + 1 <= target.usable_registers


@dataclass(frozen=True)
class TileWork:
    """Work of a tile beside the multiply-adds of a sum of floats, or instead of them.

    Attributes:
        dots_per_cycle: vectors of products of groups that start in a cycle; None: of multiply-adds.
        end_cycles: of an accumulator's end beyond those of floats.
        x_steps, w_steps: instructions that convert a broadcast, and a vector of weights.
    """

    dots_per_cycle: float | None = None
    end_cycles: float = 0.0
    x_steps: float = 0.0
    w_steps: float = 0.0


FLOATS = TileWork()


def step_cycles(target: Target, rows: int, vectors: int, work: TileWork = FLOATS) -> float:
    """Cycles of one reduction step: the largest of products, loads, weights, latency."""
    arithmetic = rows * vectors / (work.dots_per_cycle or target.fma_units)
    arithmetic += (rows * work.x_steps + vectors * work.w_steps) / target.fma_units
    slots = 2 if target.splits_vectors else 1  # of a load port, for a vector of weights
    loads = (rows + vectors * slots) / target.costs.loads_per_cycle
    stream = vectors * target.vector_bytes / target.costs.l2_read_beside_fma
    return max(arithmetic, loads, stream, float(target.fma_latency))


def tile_cycles(
    target: Target, rows: int, vectors: int, steps: int, work: TileWork = FLOATS
) -> float:
    """Estimated cycles of one tile over `steps` reduction steps."""
    size, costs = rows * vectors, target.costs
    ends = costs.accumulator * size
    if size <= costs.small_tile:
        ends *= costs.small_tile_shown
    ends += work.end_cycles * size
    return step_cycles(target, rows, vectors, work) * steps + ends + costs.tile


def panel_cycles(
    target: Target, columns: int, tile: Tile, vectors: int, steps: int, work: TileWork = FLOATS
) -> float:
    """Estimated cycles of `columns` output columns for one panel of `vectors`."""
    whole, rest = divmod(columns, tile.rows)
    cycles = whole * tile_cycles(target, tile.rows, vectors, steps, work)
    return cycles + (tile_cycles(target, rest, vectors, steps, work) if rest else 0.0)


@lru_cache(maxsize=4096)
def rank_tiles(
    target: Target, columns: int, channel_vectors: int, steps: int, work: TileWork = FLOATS
) -> tuple[tuple[float, Tile], ...]:
    """All tiles that fit, the cheapest first, with the cycles of one row of output.

    Args:
        target: the machine.
        columns: output columns of a row.
        channel_vectors: vectors that hold the output channels.
        steps: reduction steps of one output.
        work: of a step and of an accumulator's end.
    """
    ranked = []
    for vectors in range(1, min(8, channel_vectors) + 1):
        for rows in range(1, min(28, columns) + 1):
            if not fits(target, rows, vectors):
                break
            tile = Tile(rows, vectors)
            panels, rest = divmod(channel_vectors, vectors)
            cycles = panels * panel_cycles(target, columns, tile, vectors, steps, work)
            if rest:
                cycles += panel_cycles(target, columns, tile, rest, steps, work)
            cycles *= 1 + target.costs.operand_traffic * (1 / rows + 1 / vectors)
            ranked.append((cycles, tile))
    return tuple(sorted(ranked, key=lambda r: (r[0], -r[1].rows * r[1].vectors)))


def rows_per_chunk(rows: int, cycles_per_row: float, pieces: int, target_cycles: float) -> int:
    """Rows of one chunk, so that it is worth claiming and there are enough chunks.

    Args:
        rows: rows of one piece of work.
        cycles_per_row: estimated cycles of a row.
        pieces: independent pieces (images, groups, panels) besides the rows.
        target_cycles: cycles that make a chunk worth claiming.
    """
    return _equal_rows(rows, max(1, round(target_cycles / max(1.0, cycles_per_row))), pieces)


def rows_per_chunk_of_any_width(
    rows: int, width: int, cycles_per_column: float, pieces: int, target_cycles: float
) -> int:
    """Rows of one chunk of `width` columns, in integers: extents may be symbols."""
    columns = max(1, round(target_cycles / cycles_per_column))
    return _equal_rows(rows, most(1, columns // width), pieces)


def _equal_rows(rows: int, wanted: int, pieces: int) -> int:
    least_chunks = 16  # so that any number of threads is kept busy
    size = least(rows, wanted, most(1, rows * pieces // least_chunks))
    return ceil_div(rows, ceil_div(rows, size))

"""The parameters of Winograd that a user may set."""

from __future__ import annotations

from leanconv.algorithms.parameters import COUNT, TILE, Parameters, one_of, parameter
from leanconv.records import dataclass


@dataclass(frozen=True)
class WinogradParameters(Parameters):
    """Parameters of the fused form; separate stages take `m` alone.

    Attributes:
        form: one kernel, or a kernel for each stage.
        m: outputs of a tile (h, w).
        sums: products of one partial sum.
        edges: whether tiles at the far edges are whole or narrow.
        rows, vectors: of the register tile.
        tiles: of a block.
        parts: into which the output channels are split.
    """

    form: str | None = parameter(one_of("fused", "stages"))
    m: tuple[int, int] | None = parameter(TILE)
    sums: int | None = parameter(COUNT)
    edges: str | None = parameter(one_of("whole", "narrow"))
    rows: int | None = parameter(COUNT)
    vectors: int | None = parameter(COUNT)
    tiles: int | None = parameter(COUNT)
    parts: int | None = parameter(COUNT)

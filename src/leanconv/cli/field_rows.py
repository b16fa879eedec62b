"""`leanconv explain MODEL --fields`: what each output reads of each input, axis by axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leanconv.api.tile_backend import network_fields
from leanconv.cli.output import print_table
from leanconv.cli.table import NONE, Column
from leanconv.graph.fields.receptive_fields import Whole

if TYPE_CHECKING:
    import numpy as np

    from leanconv import Network

_FIELDS = (
    Column("output", "name"),
    Column("input", "name"),
    Column("axis"),
    Column("extent"),
    Column("stride"),
    Column("offset"),
    Column("read as a whole by", "prose"),
)


def field_rows(
    network: Network, shapes: dict[str, tuple[int, ...]], values: Mapping[str, np.ndarray]
) -> list[dict[str, Any]]:
    """A row for each output, input and spatial axis.

    Args:
        network: loaded for the CPU.
        shapes: of all inputs.
        values: of inputs that decide what is computed.
    """
    return [
        {
            "output": each.output,
            "input": each.input,
            "axis": each.axis,
            "extent": each.extent,
            "stride": None if each.stride is None else str(each.stride),
            "offset": each.offset,
            "whole": each.state.because if isinstance(each.state, Whole) else None,
        }
        for each in network_fields(network, shapes, values)
    ]


def print_fields(rows: list[dict[str, Any]], wide: bool) -> None:
    """The rows as a table."""
    shown = [[NONE if cell is None else str(cell) for cell in row.values()] for row in rows]
    print_table(_FIELDS, shown, wide=wide)

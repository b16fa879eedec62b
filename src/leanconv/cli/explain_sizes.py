"""Sizes in `leanconv explain MODEL`: with `--fields` the receptive fields of outputs, with
`--guards` what sizes share, and which questions part them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from leanconv.api.cpu_backend import CpuBackend
from leanconv.api.inputs import NOTHING_KNOWN, Known, Shape
from leanconv.api.network import Network
from leanconv.api.tile_backend import network_fields
from leanconv.cli.output import print_table, print_text
from leanconv.cli.table import NONE, Column
from leanconv.errors import InputError, ModelError, SpecError
from leanconv.graph.fields.receptive_fields import Whole
from leanconv.planner.explain import Shared, what_is_shared
from leanconv.units import counted, shape_text

if TYPE_CHECKING:
    import numpy as np

_FIELDS = (
    Column("output", "name"),
    Column("input", "name"),
    Column("axis"),
    Column("extent"),
    Column("stride"),
    Column("offset"),
    Column("read as a whole by", "prose"),
)
_COLUMNS = (
    Column("what", "name"),
    Column("name", "name"),
    Column("made"),
    Column("served"),
    Column("guards", optional=1),
    Column("parted by, or why each size is by itself", "prose"),
)
_LEGEND = (
    "what is made once (a graph, a choice, a layer's kernels, a kernel's code) holds for all sizes "
    "that answer the same questions alike; made: for sizes that answer differently; served: how "
    "often a later size took one of them; guards: questions asked; parted by: those that were "
    "answered differently, over sizes as the file names them\n"
)
_MOST_SHOWN = 3  # guards in a cell, the shortest
_LONGEST = 72  # characters of one
_TIMES = (2, 3)  # a layer is lowered with symbols when its second size comes, and then served


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


def guard_rows(
    network: Network,
    every: Sequence[Mapping[str, tuple[int, ...]]],
    values: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    """Return what the sizes of a network share, as JSON.

    Args:
        network: loaded for the CPU.
        every: shapes of all inputs; of one, larger ones are looked at, too.
        values: of inputs that decide what is computed.
    """
    shapes = every if len(every) > 1 else larger_shapes(network, every[0])
    rows, refused = network_sharing(network, shapes, values)
    return {
        "shapes": [dict(each) for each in shapes],
        "refused": refused,
        "shared": [asdict(row) for row in rows],
    }


def print_guards(report: dict[str, Any], wide: bool) -> None:
    """Print a table of what was shared, then of what was made more than once or not shared."""
    shown = "; ".join(
        ", ".join(f"{name} {shape_text(shape)}" for name, shape in shapes.items())
        for shapes in report["shapes"]
    )
    print_text(f"{report['model']}: {shown}", wide)
    for why in report["refused"]:
        print_text(f"not taken: {why}", wide)
    rows = [Shared(**row) for row in report["shared"]]
    if not any(row.level == "graph" for row in rows):
        print_text("no extent is open: each shape is planned by itself", wide)
    layers = [row for row in rows if row.level == "layer"]
    once = [row for row in layers if row.kept == 1 and not row.refusals]
    if layers:
        several = counted(len(layers), "layer")
        print_text(f"{len(once)} of {several} are lowered once for all these sizes", wide)
    kernels = [row for row in rows if row.level == "kernel"]
    compiled, different = sum(row.kept for row in kernels), sum(row.served for row in kernels)
    print_text(
        f"{counted(different, 'kernel')} are instances of {counted(compiled, 'form')}\n", wide
    )
    table = [_cells(row) for row in _together(row for row in rows if wide or row not in once)]
    print_text(_LEGEND, wide)
    print_table(_COLUMNS, table, wide=wide)


def _together(rows: Iterable[Shared]) -> Iterator[Shared]:
    """Rows of equal names as one: several graphs have choices of their own."""
    named: dict[tuple[str, str], list[Shared]] = {}
    for row in rows:
        named.setdefault((row.level, row.name), []).append(row)
    for (level, name), found in named.items():
        kept, served = sum(row.kept for row in found), sum(row.served for row in found)
        guards = sum(row.guards for row in found)
        parted = list(dict.fromkeys(guard for row in found for guard in row.parted_by))
        refusals = list(dict.fromkeys(why for row in found for why in row.refusals))
        yield Shared(level, name, kept, served, guards, parted, refusals)


def _cells(row: Shared) -> list[str]:
    guards = sorted(row.parted_by, key=len)[:_MOST_SHOWN]
    shown = [each if len(each) <= _LONGEST else f"{each[:_LONGEST]}…" for each in guards]
    left = len(row.parted_by) - len(shown)
    more = [f"{left} more"] if left else []
    why = dict.fromkeys([*row.refusals, *shown, *more])
    numbers = map(str, (row.kept, row.served, row.guards))
    return [row.level, row.name, *numbers, "; ".join(why) or NONE]


def larger_shapes(net: Network, shapes: Mapping[str, Shape]) -> list[dict[str, Shape]]:
    """Shapes of all inputs, and such with open extents two and three times as large.

    That is with each axis larger by itself, of all inputs that leave it open, and all of them.
    """
    declared = {each.name: each.shape for each in net.inputs}
    opened = {
        name: [
            axis
            for axis, (extent, given) in enumerate(
                zip(shape, declared[name] or (None,) * len(shape), strict=True)
            )
            if extent > 1 and not isinstance(given, int)
        ]
        for name, shape in shapes.items()
    }
    axes = sorted({axis for each in opened.values() for axis in each}, reverse=True)
    found = [dict(shapes)]
    for larger in [*({axis} for axis in axes), *([set(axes)] if len(axes) > 1 else [])]:
        for times in _TIMES:
            grown = {
                name: tuple(
                    n * times if axis in larger and axis in opened[name] else n
                    for axis, n in enumerate(shape)
                )
                for name, shape in shapes.items()
            }
            found.append(grown)
    return found


def network_sharing(
    net: Network, every: Sequence[Mapping[str, Shape]], known: Known = NOTHING_KNOWN
) -> tuple[list[Shared], list[str]]:
    """Plan a network for shapes, one after the other, and say what they share; compile nothing.

    Args:
        net: for the CPU.
        every: shapes of all inputs.
        known: values of inputs that decide what is computed.

    Returns:
        What they share; and shapes, but for the first, that the network does not take, and why.

    Raises:
        SpecError: the network runs on a GPU.
        LeanConvError: the network does not take the first of the shapes.
    """
    backend = net.backend
    if not isinstance(backend, CpuBackend):
        raise SpecError("the network runs on a GPU, where each shape is compiled by itself")
    kernels, refused = [], list[str]()
    for number, shapes in enumerate(every):
        given = tuple(shapes[each.name] for each in backend.model.inputs)
        try:
            kernels += backend.kernels(given, known)
        except (ModelError, InputError) as error:
            if not number:
                raise
            refused.append(f"{_text(shapes)}: {error}")
    return what_is_shared(backend.templates, kernels, backend.target), refused


def _text(shapes: Mapping[str, Shape]) -> str:
    return ", ".join(f"{name} {shape_text(shape)}" for name, shape in shapes.items())

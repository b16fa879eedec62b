"""From kernels to the calls of a node: value names, reorders, packing of constants, halves."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache

import numpy as np

from leanconv.algorithms.interface import KernelUse, constant_bytes
from leanconv.codegen.half_stored import half_stored, halved_calls
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Calls, Lowered, PackCall, Packing, View
from leanconv.graph.ir import Graph
from leanconv.half_arrays import in_memory
from leanconv.kernels.copy_plan import reorder_call
from leanconv.operators.operator import NodeContext
from leanconv.records import dataclass, field, replace
from leanconv.spec import Format
from leanconv.types import HALVES, DType, as_dtype


@dataclass(frozen=True, eq=False)
class Part:
    """Kernels that run one after the other, and the calls that pack their constants.

    Attributes:
        kernels: with the roles of their operands.
        pack: gives the calls that pack each constant, by role: its pieces in order.
        recipe, sources: as of `Packing`.
        temporaries: bytes of each buffer between the kernels, by role.
        overwrites: which kernels may write their result over the residual.
    """

    kernels: tuple[KernelUse, ...]
    pack: Callable[[], Calls]
    recipe: Hashable
    sources: tuple[np.ndarray, ...]
    temporaries: Mapping[str, int] = field(default_factory=dict)
    overwrites: Callable[[Kernel], bool] = lambda _: True


def lowered(
    context: NodeContext,
    images: Mapping[str, str],
    forms: Mapping[str, Format],
    parts: Sequence[Part],
    algorithm: str,
) -> Lowered:
    """Return the calls of a node's parts, with values in other formats reordered around them.

    Args:
        context: the node.
        images: the names of its values, by role; the result is `"y"`.
        forms: the formats in which kernels take these, by name.
        parts: in order.
        algorithm: the name that is shown to the user.
    """
    out, types = context.node.output, context.graph.types
    before, after, packings = list[Call](), list[Call](), list[Packing]()
    temporaries, values = dict[str, int](), dict(images)
    for name, form in reordered(context, forms).items():
        kind, own, given = types[name], f"{out}/{name} reordered", context.formats[name]
        temporaries[own] = form.elements(kind.shape) * kind.dtype.bytes
        if name == out:
            after.append(reorder_call(kind.shape, kind.dtype, own, name, form, given))
        else:
            before.append(reorder_call(kind.shape, kind.dtype, name, own, given, form))
        values = {role: own if held == name else held for role, held in values.items()}
    calls = before
    for number, part in enumerate(parts):
        suffix, sizes = f".{number}" if len(parts) > 1 else "", constant_bytes(part.kernels)
        names = {role: f"{out}/{role}{suffix}" for role in (*sizes, *part.temporaries)}
        temporaries |= {names[role]: size for role, size in part.temporaries.items()}
        packings.append(_packing(part, sizes, names))
        calls += [_call(use, {**values, **names}, part) for use in part.kernels]
    return Lowered((*calls, *after), {}, temporaries, algorithm, packings=tuple(packings))


def reordered(context: NodeContext, forms: Mapping[str, Format]) -> dict[str, Format]:
    """Return the formats that kernels take of values that lie in another one, by name."""
    return {name: form for name, form in forms.items() if context.formats[name] != form}


def _call(use: KernelUse, values: Mapping[str, str], part: Part) -> Call:
    # A tile reads its residual just before it writes the same elements.
    takes = "residual" in use.roles and use.roles[-1] == "y" and part.overwrites(use.kernel)
    in_place = (use.roles.index("residual"),) if takes else ()
    return Call(use.kernel, tuple(values[role] for role in use.roles), in_place)


def _packing(part: Part, sizes: Mapping[str, int], names: Mapping[str, str]) -> Packing:
    @cache
    def calls() -> Calls:
        return {names[role]: each for role, each in part.pack().items()}

    packed = {names[role]: size for role, size in sizes.items()}
    return Packing(packed, calls, part.recipe, part.sources)


# -- constants that each run packs -------------------------------------------------------------
def packed_in_runs(made: Lowered, data: Mapping[str, np.ndarray]) -> Lowered:
    """Return calls that first pack constants made of data, from the value into a temporary.

    Args:
        made: the calls, as if all were constant.
        data: arrays that stand for values in the packing calls, by the values' names.
    """
    calls, packings = list[Call](), list[Packing]()
    tables, inner, temporaries = dict[str, np.ndarray](), dict[str, View](), dict[str, int]()
    for packing in made.packings:
        for packed, pieces in packing.calls().items():
            size, read = packing.bytes[packed], [_read(piece, data) for piece in pieces]
            if not any(read):
                packings.append(_once(packed, size, pieces))
                continue
            temporaries[packed], offset = size, 0
            for number, (piece, source) in enumerate(zip(pieces, read, strict=True)):
                assert source is not None, "a constant is made of values and of constants"
                name = f"{packed}.{number}"
                inner |= {f"{name}.source": source, name: View(packed, offset)}
                own = {f"{name}.table{i}": table for i, table in enumerate(piece.tables())}
                tables |= own
                calls.append(Call(piece.kernel, (f"{name}.source", *own, name)))
                offset += piece.bytes
    return replace(
        made,
        calls=(*calls, *made.calls),
        constants={**made.constants, **tables},
        temporaries={**made.temporaries, **temporaries},
        packings=tuple(packings),
        inner=inner,
    )


def _read(piece: PackCall, data: Mapping[str, np.ndarray]) -> View | None:
    """Return the bytes of a value that a piece reads; None if it reads a constant."""
    address = piece.source().ctypes.data + piece.first
    for name, array in data.items():
        if 0 <= address - array.ctypes.data < array.nbytes:
            return View(name, address - array.ctypes.data)
    return None


def _once(packed: str, size: int, pieces: Sequence[PackCall]) -> Packing:
    return Packing({packed: size}, lambda: {packed: pieces})


# -- halves ------------------------------------------------------------------------------------
def of_halves(
    made: Lowered,
    graph: Graph,
    half: DType | None = None,
    is_weight: Callable[[str], bool] = lambda _: False,
) -> Lowered:
    """Return an operation, lowered as if its values were float32, on halves.

    Args:
        made: of the graph in float32.
        graph: as its values are stored.
        half: the half precision in which packed weights are kept.
        is_weight: whether the packed constant of that name is weights.
    """
    assert not made.views, "what computes moves nothing"
    assert not made.parts, "what computes moves nothing"
    names = [*made.constants, *(n for packing in made.packings for n in packing.bytes)]
    weights = {name: str(half) for name in names if half and is_weight(name)}
    constants = {
        name: in_memory(array, as_dtype(weights[name])) if name in weights else array
        for name, array in made.constants.items()
    }
    return replace(
        made,
        calls=tuple(_on_halves(call, graph, weights) for call in made.calls),
        constants=constants,
        packings=tuple(_in_halves(packing, weights) for packing in made.packings),
    )


def _in_halves(packing: Packing, weights: Mapping[str, str]) -> Packing:
    if not weights:
        return packing

    def calls() -> Calls:
        found = packing.calls()
        return {n: halved_calls(c, weights[n]) if n in weights else c for n, c in found.items()}

    sizes = {n: size // 2 if n in weights else size for n, size in packing.bytes.items()}
    recipe = None if packing.recipe is None else (packing.recipe, *sorted(weights.values())[:1])
    return Packing(sizes, calls, recipe, packing.sources)


def _on_halves(call: Call, graph: Graph, weights: Mapping[str, str]) -> Call:
    """A call on halves; a result takes over the memory of a value stored alike."""
    if getattr(call.kernel, "dtype", None) in HALVES:  # what moves them as they lie
        return call
    halves = tuple(_half(name, graph) or weights.get(name, "") for name in call.values)
    result = halves[len(halves) - call.kernel.result_count]
    in_place = tuple(number for number in call.in_place if halves[number] == result)
    return replace(call, kernel=half_stored(call.kernel, halves), in_place=in_place)


def _half(name: str, graph: Graph) -> str:
    """The half precision of a value; "" of constants, temporaries and others."""
    kind = None if name in graph.constants else graph.types.get(name)
    return str(kind.dtype) if kind is not None and kind.dtype in HALVES else ""

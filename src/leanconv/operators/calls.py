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
from leanconv.target import Target
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
    out, types = context.node.key, context.graph.types
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
@dataclass(frozen=True, eq=False)
class Made:
    """An array that each run makes of data before constants are packed of it.

    Attributes:
        array: that stands for it in the packing calls; uninitialised.
        calls: that make it, one piece after the other.
    """

    array: np.ndarray
    calls: Sequence[PackCall]

    def cycles(self, target: Target) -> float:
        """Estimated cycles of one core."""
        return sum(call.kernel.packing_cycles(target) for call in self.calls)


def packed_in_runs(
    made: Lowered, data: Mapping[str, np.ndarray], before: Sequence[Made] = ()
) -> Lowered:
    """Return calls that first pack constants made of data, from the value into a temporary.

    Args:
        made: the calls, as if all were constant.
        data: arrays that stand for values in the packing calls, by the values' names.
        before: arrays that are made of these, of which constants are packed.
    """
    runs, packings = _Runs(dict(data)), list[Packing]()
    for number, each in enumerate(before):
        name = f"{made.calls[-1].results[0]}/weights{number}"
        runs.packs(name, each.array.nbytes, each.calls)
        runs.held[name] = each.array
    for packing in made.packings:
        for packed, pieces in packing.calls().items():
            size = packing.bytes[packed]
            if not runs.packs(packed, size, pieces):
                packings.append(_once(packed, size, pieces))
    unread = runs.held.keys() - {view.source for view in runs.inner.values()}
    assert not unread, f"packed constants are made of copies of {sorted(unread)}"
    return replace(
        made,
        calls=(*runs.calls, *made.calls),
        constants={**made.constants, **runs.tables},
        temporaries={**made.temporaries, **runs.temporaries},
        packings=tuple(packings),
        inner=runs.inner,
    )


class _Runs:
    """Calls that pack in each run, with what they name.

    Args:
        held: arrays that stand for values in packing calls, by the values' names.
    """

    def __init__(self, held: dict[str, np.ndarray]) -> None:
        self.held, self.calls = held, list[Call]()
        self.tables, self.inner = dict[str, np.ndarray](), dict[str, View]()
        self.temporaries = dict[str, int]()

    def packs(self, packed: str, size: int, pieces: Sequence[PackCall]) -> bool:
        """Add the calls of a constant's pieces; False if these read no values."""
        read = [self._read(piece) for piece in pieces]
        if not any(read):
            return False
        self.temporaries[packed], offset = size, 0
        for number, (piece, source) in enumerate(zip(pieces, read, strict=True)):
            assert source is not None, "a constant is made of values and of constants"
            name = f"{packed}.{number}"
            self.inner |= {f"{name}.source": source, name: View(packed, offset)}
            own = {f"{name}.table{i}": table for i, table in enumerate(piece.tables())}
            self.tables |= own
            self.calls.append(Call(piece.kernel, (f"{name}.source", *own, name)))
            offset += piece.bytes
        return True

    def _read(self, piece: PackCall) -> View | None:
        """Return the bytes of a value that a piece reads; None if it reads a constant."""
        address = piece.source().ctypes.data + piece.first
        for name, array in self.held.items():
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

"""Calls lowered in float32, over values that are stored in halves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from leanconv.codegen.half_stored import half_stored, halved_calls
from leanconv.codegen.lowered import Call, Calls, Lowered, Packing
from leanconv.graph.ir import Graph
from leanconv.half_arrays import in_memory
from leanconv.types import HALVES, DType, Precision, as_dtype


def halves_in(names: tuple[str, ...], graph: Graph, others: Mapping[str, str]) -> tuple[str, ...]:
    """The half precision of each value of a call, `""` for one that has none.

    Args:
        names: of the values; temporaries are in no graph.
        graph: with the types of its values.
        others: the half precisions of constants.
    """
    found = []
    for name in names:
        kind = graph.types.get(name)
        half = kind is not None and name not in graph.constants and kind.dtype in HALVES
        found.append(str(kind.dtype) if kind is not None and half else others.get(name, ""))
    return tuple(found)


def of_halves(
    lowered: Lowered,
    graph: Graph,
    half: DType | None = None,
    is_weight: Callable[[str], bool] = lambda _: False,
) -> Lowered:
    """An operation that was lowered as if its values were float32, on halves.

    Args:
        lowered: of the graph in float32.
        graph: as its values are stored.
        half: the half precision in which packed weights are kept.
        is_weight: which of the packed constants are such, by name.
    """
    assert not lowered.views, "what computes moves nothing"
    assert not lowered.parts, "what computes moves nothing"
    names = [*lowered.constants, *(n for packing in lowered.packings for n in packing.bytes)]
    weights = {name: str(half) for name in names if half and is_weight(name)}
    constants = {
        name: in_memory(array, as_dtype(weights[name])) if name in weights else array
        for name, array in lowered.constants.items()
    }
    return replace(
        lowered,
        calls=tuple(_on_halves(c, halves_in(c.values, graph, weights)) for c in lowered.calls),
        constants=constants,
        packings=tuple(_in_halves(packing, weights) for packing in lowered.packings),
    )


def _in_halves(packing: Packing, weights: Mapping[str, str]) -> Packing:
    """A packing whose weights, packed as float32, are kept in halves."""
    if not weights:
        return packing

    def calls() -> Calls:
        found = packing.calls()
        return {n: halved_calls(c, weights[n]) if n in weights else c for n, c in found.items()}

    sizes = {n: size // 2 if n in weights else size for n, size in packing.bytes.items()}
    recipe = None if packing.recipe is None else (packing.recipe, *sorted(weights.values())[:1])
    return Packing(sizes, calls, recipe, packing.sources)


def _on_halves(call: Call, halves: tuple[str, ...]) -> Call:
    """A call on halves; a result takes over the memory of what is stored alike."""
    if getattr(call.kernel, "dtype", None) in HALVES:  # what moves them as they lie
        return call
    result = halves[len(halves) - call.kernel.result_count]
    in_place = tuple(number for number in call.in_place if halves[number] == result)
    return replace(call, kernel=half_stored(call.kernel, halves), in_place=in_place)


def precision_of(x: DType, y: DType) -> Precision:
    """That of a convolution whose input and output are stored in these types."""
    half = next((each for each in (y, x) if each in HALVES), None)
    if half is None:
        return Precision.of(x)
    return Precision(x, half, half.accumulator, y)

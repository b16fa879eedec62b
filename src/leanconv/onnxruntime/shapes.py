"""Shapes of outputs that a file does not declare, where its inputs leave extents open."""

from __future__ import annotations

from leanconv.errors import LeanConvError
from leanconv.graph.ir import Graph
from leanconv.graph.onnx_import import Model

Extents = tuple[int | str | None, ...]
# Each open extent gets sizes of its own, so that an output's extent tells whose it is. Networks
# that halve their maps five times take multiples of 32.
_SIZES = (64, 96)
_STEP = 64


def inferred(model: Model) -> dict[str, Extents]:
    """Shapes of outputs by name: numbers, names of inputs' extents, None for other open ones.

    The network is bound to two sets of sizes, and what is equal in both is a number. Outputs whose
    rank differs, and networks that do not take these sizes, are left out.
    """
    graphs: list[Graph] = []
    sizes: dict[object, int] = {}
    for size in _SIZES:
        sizes.clear()
        shapes = {}
        for each in model.inputs:
            if each.shape is None:
                return {}
            keys = [
                n if isinstance(n, int | str) else (each.name, axis)
                for axis, n in enumerate(each.shape)
            ]
            shapes[each.name] = tuple(
                key if isinstance(key, int) else sizes.setdefault(key, size + _STEP * len(sizes))
                for key in keys
            )
        try:
            graphs.append(model.bind(shapes))
        except LeanConvError:
            return {}
    names = [key if isinstance(key, str) else None for key in sizes]
    found = {}
    for name, *values in zip(model.outputs, *(graph.outputs for graph in graphs), strict=True):
        first, second = (
            graph.types[value].shape for graph, value in zip(graphs, values, strict=True)
        )
        if len(first) == len(second):
            found[name] = tuple(_extent(a, b, names) for a, b in zip(first, second, strict=True))
    return found


def _extent(first: int, second: int, names: list[str | None]) -> int | str | None:
    if first == second:
        return first
    number, rest = divmod(first - _SIZES[0], _STEP)
    whose = not rest and second - first == _SIZES[1] - _SIZES[0] and 0 <= number < len(names)
    return names[number] if whose else None

"""A report of the graph, choices, lowered layers and code that a network's sizes share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leanconv.api.cpu_backend import CpuBackend
from leanconv.api.inputs import NOTHING_KNOWN, Known, Shape
from leanconv.api.network import Network
from leanconv.errors import InputError, ModelError, SpecError
from leanconv.planner.explain import Shared, what_is_shared
from leanconv.units import shape_text

_TIMES = (2, 3)  # a layer is lowered with symbols when its second size comes, and then served


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

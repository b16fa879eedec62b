"""Which transform for one channel whose tiles fill vectors: estimated cycles of every choice."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product

from leanconv.algorithms.fft.cost import Choices, transform_cycles
from leanconv.algorithms.fft.plane_layout import PlaneLayout
from leanconv.algorithms.fft.tiles import axes_of
from leanconv.algorithms.problem import Problem, typical
from leanconv.errors import SpecError
from leanconv.records import replace
from leanconv.target import Target

_MOST_TERMS = 64  # parts and phases of one output


@lru_cache(maxsize=256)
def best_plane(problem: Problem, target: Target, choices: Choices) -> tuple[float, PlaneLayout]:
    """The cheapest choice and its cycles on one core.

    Raises:
        SpecError: the kernel cannot be cut into so many parts.
    """
    sized = typical(problem) if problem.any_size else problem
    found = [(plane_cycles(each, target), each) for each in _layouts(sized, target, choices)]
    if not found:
        raise SpecError(
            f"fft: parts is {choices.parts} for {problem}; expected so many that each fits "
            "its tile: leave parts out"
        )
    cycles, layout = min(found, key=lambda each: each[0])
    if not problem.any_size:
        return cycles, layout
    alike = Choices((layout.length,), choices.products, layout.parts)
    resized = next(iter(_layouts(problem, target, alike)))
    # Outputs of a tile are all that fit, whatever would divide the map into equal tiles.
    layout = replace(resized, height=resized.height.longest, width=resized.width.longest)
    return plane_cycles(layout, target), layout


def _layouts(problem: Problem, target: Target, choices: Choices) -> Iterator[PlaneLayout]:
    for length in choices.lengths:
        cut = (axes_of(problem.window, axis, length) for axis in (1, 2))
        for height, width in product(*cut):
            layout = PlaneLayout(
                batch=problem.batch,
                groups=problem.groups,
                height=height,
                width=width,
                x=problem.x,
                y=problem.y,
                dtype=problem.dtype,
                lanes=problem.lanes(target),
                epilogue=problem.epilogue,
                x_offset=problem.x_offset,
                y_offset=problem.y_offset,
            )
            wanted = choices.parts in (None, layout.parts)
            if wanted and (choices.parts or layout.reduction_steps <= _MOST_TERMS):
                yield layout


def plane_cycles(layout: PlaneLayout, target: Target) -> float:
    """Estimated cycles of one core."""
    costs, length, terms = target.costs, layout.length, layout.reduction_steps
    rows, columns = layout.height.kept, layout.width.kept
    forward, back = transform_cycles(length, rows, columns, target)
    # Rows pass through memory twice more, as they lie in the tensor and transposed.
    moved = costs.transposed_vector + 4 * costs.vector_move
    forward += length**2 * moved
    back += rows * columns * moved
    products = layout.bins * (4 / target.fma_units + 4 * costs.vector_move)
    passed = 2 * terms * length * layout.mid_row * layout.item  # written, then read by columns
    level = costs.l2_read if passed < 2 * target.l2_bytes else costs.l3_read
    waits = 2 * passed / level if passed > 2 * costs.l1_ways * costs.l1_way_bytes else 0.0
    return layout.groups * layout.vectors * (terms * (forward + products) + back + waits)

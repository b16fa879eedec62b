"""Tensors of floats that lie plain: brought into blocks of channels before tiles, and back behind.

    x (N, C, H, W) or (N, H, W, C)  ->  "x.blocks"  -> tiles ->  "y.blocks"  ->  y

A tile's rows are channels of one pixel, and its columns are stored as such: both are blocks of
channels. The copies take little time beside products that tiles take a tenth of the time for.
"""

from __future__ import annotations

from dataclasses import replace

from leanconv.algorithms.interface import Candidate, KernelUse
from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import Access
from leanconv.codegen.matrix_tiles import COLUMNS
from leanconv.kernels.copy import Copy
from leanconv.kernels.copy_plan import reorder
from leanconv.spec import NHWC, PLAIN, Format
from leanconv.target import Target
from leanconv.types import DType

_BLOCKS = Format(COLUMNS)
Shape = tuple[int, ...]


def in_blocks(problem: Problem, keeps_x: bool) -> Problem:
    """The problem with blocks of channels for floats that are plain arrays, where they are.

    Args:
        problem: the convolution.
        keeps_x: whether the input is read as it lies.
    """
    if problem.any_size or not problem.precision.accumulate.is_float:
        return problem
    x, y = problem.x, problem.y
    if not keeps_x and not problem.x_offset and _is_plain(x, _x_shape(problem)):
        x = Access.of_format(_x_shape(problem), _BLOCKS)
    if not problem.y_offset and _is_plain(y, _y_shape(problem)):
        y = Access.of_format(_y_shape(problem), _BLOCKS)
    return problem if (x, y) == (problem.x, problem.y) else replace(problem, x=x, y=y)


def reorder_cycles(problem: Problem, blocked: Problem, target: Target) -> float:
    """Estimated cycles of bringing what is plain into blocks and back."""
    costs, total = target.costs, 0.0
    for size, _ in _moved(problem, blocked).values():
        total += 2 * size / costs.dram_copy + costs.stage
    return total


def with_reorders(candidate: Candidate, problem: Problem, blocked: Problem) -> Candidate:
    """The candidate of the problem in blocks, for the problem as it is."""
    moved = _moved(problem, blocked)
    if not moved:
        return candidate
    (use,) = candidate.kernels
    roles = tuple(f"{role}.blocks" if role in moved else role for role in use.roles)
    uses = [KernelUse(use.kernel, roles)]
    for role, (_, kernel) in moved.items():
        if role != "y" and role in use.roles:
            uses.insert(0, KernelUse(kernel, (role, f"{role}.blocks")))
    if "y" in moved:
        uses.append(KernelUse(moved["y"][1], ("y.blocks", "y")))
    sizes = {f"{role}.blocks": size for role, (size, _) in moved.items()}
    return replace(candidate, kernels=tuple(uses), temporaries=sizes)


def _moved(problem: Problem, blocked: Problem) -> dict[str, tuple[int, Copy]]:
    """What is reordered, by role: bytes in blocks, and the kernel."""
    types, found = problem.precision, {}
    x, y = _x_shape(problem), _y_shape(problem)
    if problem.x != blocked.x:
        kernel = _reordered(x, types.x, problem.x)
        found["x"] = _BLOCKS.elements(x) * types.x.bytes, kernel
    if problem.y != blocked.y:
        size = _BLOCKS.elements(y) * types.y.bytes
        if problem.epilogue.residual:
            found["residual"] = size, _reordered(y, types.y, problem.y)
        found["y"] = size, _reordered(y, types.y, problem.y, back=True)
    return found


def _reordered(shape: Shape, dtype: DType, plain: Access, back: bool = False) -> Copy:
    """The kernel that brings a plain tensor into blocks, or back."""
    given = NHWC if plain.block_stride == 1 else PLAIN
    source, target = (_BLOCKS, given) if back else (given, _BLOCKS)
    return reorder(shape, dtype, source, target)


def _is_plain(access: Access, shape: Shape) -> bool:
    """Whether a tensor is a plain array, with channels first or last."""
    return access in (Access.of_format(shape, form) for form in (PLAIN, NHWC))


def _x_shape(problem: Problem) -> Shape:
    return (problem.batch, problem.in_channels, *problem.window.size)


def _y_shape(problem: Problem) -> Shape:
    return (problem.batch, problem.out_channels, *problem.window.out)

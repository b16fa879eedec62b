"""Operations that only move elements: Transpose, Slice, Split, Concat, Pad, Expand, Reshape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from math import prod

import numpy as np

from leanconv.codegen.lowered import Call, Lowered, PackCall, Packing, Part, View
from leanconv.graph.edit import part_nodes
from leanconv.graph.ir import Graph, Node
from leanconv.kernels import KernelContext
from leanconv.kernels.copy import Copy, CopyTask
from leanconv.kernels.copy_plan import StridedBox, copy_tasks, row_major, to_format
from leanconv.kernels.index_maps import (
    IndexRun,
    Shape,
    blocked_tasks,
    padded,
    plain_boxes,
    whole,
)
from leanconv.kernels.packing import rearranged
from leanconv.records import replace
from leanconv.spec.format import NHWC, Format
from leanconv.types import DType, as_dtype

# Tasks of one kernel: the time that LLVM takes grows faster than they do.
_MOST_TASKS = 64


def accepts_blocked(node: Node, graph: Graph, block: int) -> bool:
    """Return whether the operation works between tensors in blocks of channels."""
    x, y = graph.types[node.inputs[0]].shape, graph.types[node.key].shape
    if node.op == "Reshape":
        return _keeps_blocks(x, y, block)
    if node.op == "Transpose":
        return len(x) >= 3 and node.attributes["perm"][1] == 1
    if node.op == "Expand":
        return len(x) == len(y) >= 3
    return len(x) >= 3


def _keeps_blocks(x: Shape, y: Shape, block: int) -> bool:
    """True if the same bytes hold both shapes, those of rank 3 and more in blocks."""
    if min(len(x), len(y)) < 2 or max(len(x), len(y)) < 3 or x[:2] != y[:2]:
        return False
    if len(x) >= 3 and len(y) >= 3:
        return True
    # (N, C, 1, 1) and (N, C): unused lanes must neither be between images nor be missing.
    return x[1] % block == 0 or (x[0] == 1 and len(y) == 2)


def lower(context: KernelContext) -> Lowered:
    """Return one copy kernel, or a view where no byte moves; of a Split one for each part."""
    node, graph, formats = context.node, context.graph, context.formats
    if node.op == "Split":
        slices = part_nodes(node, graph.types[node.inputs[0]].shape)
        return _together([lower(replace(context, node=part)) for part in slices])
    result = node.output
    if node.op == "Reshape":
        return Lowered((), algorithm="view", views={result: View(node.inputs[0])})
    dtype = graph.types[result].dtype
    block = formats[result].block
    if NHWC in (formats[node.inputs[0]], formats[result]):  # a Transpose to them, or of them
        return Lowered((), algorithm="view", views={result: View(node.inputs[0])})
    shapes = [graph.types[name].shape for name in node.inputs[: _sources(node)]]
    if node.op == "Slice" and node.inputs[0] not in graph.constants:
        begin = _first_of_run(node, shapes[0], graph.types[result].shape, formats[result])
        if begin is not None:
            part = View(node.inputs[0], begin * dtype.bytes)
            return Lowered((), algorithm="view", views={result: part})
    if block:
        tasks = _blocked(node, shapes, graph.types[result].shape, block, dtype)
    else:
        boxes = _plain(node, shapes, graph.types[result].shape)
        tasks = [task for box in boxes for task in copy_tasks(box, dtype)]
    if len(shapes) == 1 and _moves_nothing(tasks, Format(block), shapes[0], graph, result):
        return Lowered((), algorithm="view", views={result: View(node.inputs[0])})
    names, packings = _operands(node.inputs[: len(shapes)], graph, Format(block), result)
    parts: tuple[Part, ...] = ()
    if node.op == "Concat":
        form = formats[result]
        begins = _first_of_parts(node, shapes, graph.types[result].shape, form)
        parts = tuple(
            _part(name, form.elements(shape), begin, dtype)
            for name, shape, begin in zip(names, shapes, begins, strict=False)
        )
    calls = _calls(tasks, names, result, dtype)
    return Lowered(calls, {}, {}, "copy", parts=parts, packings=packings)


def _together(parts: Sequence[Lowered]) -> Lowered:
    """The parts of a Split: some are views, others copies."""
    calls = tuple(call for part in parts for call in part.calls)
    return Lowered(
        calls,
        algorithm="copy" if calls else "view",
        views={name: view for part in parts for name, view in part.views.items()},
        packings=tuple(packing for part in parts for packing in part.packings),
    )


def _calls(
    tasks: Sequence[CopyTask], names: Sequence[str], result: str, dtype: DType
) -> tuple[Call, ...]:
    """Copy kernels that do the tasks; those of many sources do some of them each."""
    if 0 < len(tasks) <= _MOST_TASKS:
        return (Call(Copy(dtype, len(names), tuple(tasks)), (*names, result)),)
    calls = []
    for at in range(0, len(tasks), _MOST_TASKS):
        some = tasks[at : at + _MOST_TASKS]
        read = list(dict.fromkeys(operand for task in some for operand in task.operands))
        place = {operand: number for number, operand in enumerate(read)}
        moved = tuple(
            replace(task, operands=tuple(place[operand] for operand in task.operands))
            for task in some
        )
        values = (*(names[operand] for operand in read), result)
        calls.append(Call(Copy(dtype, len(read), moved), values))
    return tuple(calls)


def _first_of_run(node: Node, source: Shape, result: Shape, form: Format) -> int | None:
    """The element at which a slice begins, where its elements follow each other in memory."""
    starts, steps = node.attributes["starts"], node.attributes["steps"]
    if form.block:
        if starts[1] % form.block or steps[1] != 1:
            return None
        starts = (starts[0], starts[1] // form.block, *starts[2:], 0)
        steps = (*steps, 1)
        source, result = form.physical_shape(source), form.physical_shape(result)
    strides = row_major(source)
    several = False  # whether an axis before has more than one index
    for extent, whole_extent, step in zip(result, source, steps, strict=True):
        if extent != 1 and step != 1:
            return None
        if several and extent != whole_extent:
            return None
        several = several or extent != 1
    begin: int = sum(start * stride for start, stride in zip(starts, strides, strict=True))
    return begin


def _first_of_parts(node: Node, shapes: Sequence[Shape], result: Shape, form: Format) -> list[int]:
    """Return the first element of each source in the result; empty unless all are runs."""
    axis, block = node.attributes["axis"], form.block
    if prod(form.physical_shape(result)[:axis]) != 1 or not all(map(prod, shapes)):
        return []
    if block and axis == 1 and any(shape[1] % block for shape in shapes[:-1]):
        return []
    sizes = [form.elements(shape) for shape in shapes[:-1]]
    return list(accumulate(sizes, initial=0))


def _part(source: str, count: int, begin: int, dtype: DType) -> Part:
    """One source of a Concat: a run of its result."""
    box, item = StridedBox(0, (count,), (1,), (1,)), dtype.bytes
    kernel = Copy(dtype, 1, tuple(copy_tasks(box, dtype)))
    return Part(source, begin * item, count * item, kernel)


def _sources(node: Node) -> int:
    return len(node.inputs) if node.op == "Concat" else 1


def _moves_nothing(
    tasks: Sequence[CopyTask], form: Format, source: Shape, graph: Graph, result: str
) -> bool:
    same = all(
        p.body == "run" and p.strides[0] == p.strides[1] and p.offsets[0] == p.offsets[1]
        for p in tasks
    )
    return same and form.elements(source) == form.elements(graph.types[result].shape)


def _operands(
    names: Sequence[str], graph: Graph, form: Format, result: str
) -> tuple[list[str], tuple[Packing, ...]]:
    """Names of the sources, and how constants among them are put into the result's format."""
    packings: list[Packing] = []
    operands = list(names)
    for index, name in enumerate(names):
        if form.block and name in graph.constants:
            array, made = graph.constants[name], f"{result}.source{index}"
            packings.append(_in_blocks(made, array, form))
            operands[index] = made
    return operands, tuple(packings)


def _in_blocks(name: str, array: np.ndarray, form: Format) -> Packing:
    each, recipe = form.elements(array.shape), ("blocks", form.block)

    def calls() -> dict[str, list[PackCall]]:
        order, whole = partial(to_format, form=form), array[np.newaxis, np.newaxis]
        return {name: [rearranged(whole, order, each, as_dtype(array.dtype))]}

    return Packing({name: each * array.itemsize}, calls, recipe, (array,))


# -- which elements go where ---------------------------------------------------------------
def _slice_maps(node: Node, _shape: Shape, result: Shape) -> list[list[IndexRun]]:
    starts, steps = node.attributes["starts"], node.attributes["steps"]
    return [[IndexRun(0, a, s, n)] for a, s, n in zip(starts, steps, result, strict=True)]


def _pad_maps(node: Node, shape: Shape, _result: Shape) -> list[list[IndexRun]]:
    pads, mode = node.attributes["pads"], node.attributes["mode"]
    ends = zip(shape, pads[: len(shape)], pads[len(shape) :], strict=True)
    return [padded(extent, before, after, mode) for extent, before, after in ends]


def _expand_maps(_node: Node, shape: Shape, result: Shape) -> list[list[IndexRun]]:
    return [[IndexRun(0, 0, int(n > 1), m)] for n, m in zip(shape, result, strict=True)]


def _whole_maps(_node: Node, _shape: Shape, result: Shape) -> list[list[IndexRun]]:
    return [whole(n) for n in result]


def _concat_maps(node: Node, shapes: Sequence[Shape]) -> list[list[list[IndexRun]]]:
    axis, at = node.attributes["axis"], 0
    maps = []
    for shape in shapes:
        maps.append([whole(n, at if i == axis else 0) for i, n in enumerate(shape)])
        at += shape[axis]
    return maps


# What an operation that copies reads along each axis of its result: of a node, the extents that it
# reads, and those of the result, which are as many.
_MAPS: dict[str, Callable[[Node, Shape, Shape], list[list[IndexRun]]]] = {
    "Transpose": _whole_maps,
    "Concat": _whole_maps,
    "Slice": _slice_maps,
    "Pad": _pad_maps,
    "Expand": _expand_maps,
}
CODES_IN_BLOCKS = True


def _plain(node: Node, shapes: Sequence[Shape], result: Shape) -> list[StridedBox]:
    if node.op == "Concat":
        boxes: list[StridedBox] = []
        for operand, maps in enumerate(_concat_maps(node, shapes)):
            boxes += plain_boxes(operand, row_major(shapes[operand]), row_major(result), maps)
        return boxes
    shape = (1,) * (len(result) - len(shapes[0])) + shapes[0]
    read = row_major(shape)
    if node.op == "Transpose":
        read = tuple(read[axis] for axis in node.attributes["perm"])
    maps = _MAPS[node.op](node, shape, result)
    return plain_boxes(0, read, row_major(result), maps, _fill_value(node))


def _fill_value(node: Node) -> float:
    value: float = node.attributes["value"] if node.op == "Pad" else 0.0
    return value


def _blocked(
    node: Node, shapes: Sequence[Shape], result: Shape, block: int, dtype: DType
) -> list[CopyTask]:
    if node.op == "Concat" and node.attributes["axis"] != 1:
        tasks: list[CopyTask] = []
        for operand, maps in enumerate(_concat_maps(node, shapes)):
            own = [(operand, run) for run in maps[1]]
            around = [maps[0], *maps[2:]]
            tasks += blocked_tasks(shapes, result, block, own, around, dtype)
        return tasks
    maps = _MAPS[node.op](node, shapes[0], result)
    channels = [(0, run) for run in maps[1]]
    if node.op == "Concat":
        channels = [(o, run) for o, shape in enumerate(shapes) for run in whole(shape[1])]
    perm = node.attributes["perm"] if node.op == "Transpose" else None
    around = [maps[0], *maps[2:]]
    return blocked_tasks(shapes, result, block, channels, around, dtype, _fill_value(node), perm)

"""Routes: the axis of a result where each axis of an operand goes, and the indices it reads.

A rule gives, for one operand of one node, `{axis: (axis of the result, map)}`. An absent axis
is read as a whole, or at places that only data say: channels by a convolution, pixels by
global pooling, by attention or by a softmax over them. What has no rule reads everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from types import MappingProxyType

import numpy as np

from leanconv.graph.fields.axis_map import (
    IDENTITY,
    AxisMap,
    IrregularError,
    table_map,
    transposed_map,
    window_map,
)
from leanconv.graph.ir import Attributes, Node, TensorType
from leanconv.graph.ops import OPS
from leanconv.graph.ops.chain import ConvStage, Stage
from leanconv.graph.ops.conv import window_steps
from leanconv.graph.ops.resample import window as resample_window
from leanconv.graph.ops.resize import linear_cells, nearest_cells
from leanconv.records import dataclass
from leanconv.spec.conv import effective_extent
from leanconv.types import DType

Routes = Mapping[int, tuple[int, AxisMap]]
NOWHERE: Routes = MappingProxyType({})


def axis_table(
    node: Node, axis: int, extent: int, dtype: DType
) -> tuple[np.ndarray, np.ndarray] | None:
    """The cells that each element along an axis of a Resize or Resample reads, and their weights.

    Args:
        node: the operation.
        axis: of its operand and result.
        extent: of the operand along that axis.
        dtype: of its elements, which decides how places are rounded.

    Returns:
        (cells, weights): int64 and floats, both of shape (size, taps); of `nearest` one tap of the
        weight 1. None for an axis that is left as it is.
    """
    attributes = node.attributes
    if node.op == "Resample":
        if axis not in attributes["axes"]:
            return None
        begin, weights = resample_window(attributes, axis, extent, dtype)
        return begin[:, None] + np.arange(weights.shape[1]), weights
    size, scale = attributes["sizes"][axis], attributes["scales"][axis]
    if size == extent and scale == 1:
        return None
    mode = attributes["coordinate_transformation_mode"]
    if attributes["mode"] == "nearest":
        cells = nearest_cells(extent, size, scale, mode, attributes["nearest_mode"])[:, None]
        return cells, np.ones(cells.shape)
    return linear_cells(extent, size, scale, mode, dtype.numpy)


@dataclass(frozen=True, eq=False)
class Read:
    """One operand of one node, as one of its results reads it.

    Attributes:
        node: the node.
        operand, result: numbers of its input and output.
        kinds: types of its inputs; None for an absent one.
        given: the type of the result.
    """

    node: Node
    operand: int
    result: int
    kinds: Sequence[TensorType | None]
    given: TensorType

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the operand."""
        kind = self.kinds[self.operand]
        assert kind is not None
        return kind.shape


def routes(read: Read) -> Routes:
    """Return the routes of an operand's axes; see the module."""
    rule = RULES.get(OPS[read.node.op].routes)
    return NOWHERE if rule is None else rule(read)


# -- rules -------------------------------------------------------------------------------------
def _aligned(read: Read) -> Routes:
    """Broadcasting: axes are aligned from the last one; an axis that is repeated is read whole."""
    before = len(read.given.shape) - len(read.shape)
    found = enumerate(zip(read.shape, read.given.shape[before:], strict=True))
    return {axis: (axis + before, IDENTITY) for axis, (one, other) in found if one == other}


def _of_first(read: Read) -> Routes:
    """Elements of the first operand; all others are one number, or one for each channel."""
    return NOWHERE if read.operand else _aligned(read)


def _convolution(read: Read) -> Routes:
    """A window of the first operand; a residual as it is."""
    attributes, kernel = read.node.attributes, read.kinds[1]
    assert kernel is not None
    if read.operand == (3 if read.node.op == "Conv" else 4):
        return _aligned(read)
    if read.operand:
        return NOWHERE
    return {0: (0, IDENTITY), **_sliding(kernel.shape[2:], attributes)}


def _sliding(taps: Sequence[int], attributes: Attributes) -> Routes:
    """Windows of so many taps along each spatial axis."""
    axes = enumerate(zip(taps, window_steps(attributes), strict=True), 2)
    return {
        axis: (axis, window_map(stride, -before, effective_extent(count, dilation)))
        for axis, (count, (stride, dilation, before, _)) in axes
    }


def _transposed(read: Read) -> Routes:
    kernel = read.kinds[1]
    assert kernel is not None
    if read.operand:
        return NOWHERE
    found: dict[int, tuple[int, AxisMap]] = {0: (0, IDENTITY)}
    axes = zip(kernel.shape[2:], window_steps(read.node.attributes), strict=True)
    for axis, (taps, (stride, dilation, before, _)) in enumerate(axes, 2):
        found[axis] = axis, transposed_map(taps, stride, dilation, before)
    return found


def _pool(read: Read) -> Routes:
    attributes = read.node.attributes
    windows = _sliding(attributes["kernel_shape"], attributes)
    return {0: (0, IDENTITY), 1: (1, IDENTITY), **windows}


def _reduction(read: Read) -> Routes:
    return _without(read, read.node.attributes["axes"], read.node.attributes["keepdims"])


def _extreme(read: Read) -> Routes:
    attributes = read.node.attributes
    return _without(read, (attributes["axis"],), attributes["keepdims"])


def _along_last(read: Read) -> Routes:
    """All axes from one on are read as a whole and stay."""
    first = read.node.attributes["first"]
    return NOWHERE if read.operand else _without(read, range(first, len(read.shape)), True)


def _without(read: Read, axes: Sequence[int], kept: bool) -> Routes:
    """All axes but some, which are mixed; these have the extent 1 in the result if `kept`."""
    left = [axis for axis in range(len(read.shape)) if axis not in axes]
    return {axis: (axis if kept else number, IDENTITY) for number, axis in enumerate(left)}


def _product(read: Read) -> Routes:
    """Matrices by NumPy's rules: the inner axis is mixed, those of a batch are broadcast."""
    rank, out, first = len(read.shape), len(read.given.shape), read.operand == 0
    other = read.kinds[1 - read.operand]
    assert other is not None
    if rank < 2 or len(other.shape) < 2:
        return NOWHERE
    kept = rank - 2 if first else rank - 1
    found = {kept: (out - 2 if first else out - 1, IDENTITY)}
    for axis in range(rank - 2):
        to = axis + out - rank
        if read.shape[axis] == read.given.shape[to]:
            found[axis] = to, IDENTITY
    return found


def _gemm(read: Read) -> Routes:
    if read.operand == 2:
        return _aligned(read)
    turned = read.node.attributes["transB" if read.operand else "transA"]
    kept = 1 if bool(turned) != bool(read.operand) else 0
    return {kept: (read.operand, IDENTITY)}


def _attention(read: Read) -> Routes:
    """Queries one by one; keys and values as a whole."""
    rank = len(read.given.shape)
    if read.operand == 3:
        found = _aligned(read)
        return {axis: to for axis, to in found.items() if to[0] < rank - 1}
    kept = rank - 1 if read.operand == 0 else rank - 2
    return {axis: (axis, IDENTITY) for axis in range(kept)}


def _reshape(read: Read) -> Routes:
    """Axes that stay, are cut in two or more, or become the longest step of a joined one."""
    source, result = read.shape, read.given.shape
    found: dict[int, tuple[int, AxisMap]] = {}
    for before, after in _groups(source, result):
        wide = [axis for axis in before if source[axis] != 1]
        made = [axis for axis in after if result[axis] != 1]
        if not wide:  # axes of one element stay in order
            found.update({a: (b, IDENTITY) for a, b in zip(before, after, strict=False)})
        elif made:
            inner = int(np.prod([source[axis] for axis in wide[1:]]))
            outer = int(np.prod([result[axis] for axis in made[1:]]))
            if inner == 1 or outer == 1:
                made_map = AxisMap(outer, (0,) * inner, (outer - 1,) * inner)
                found[wide[0]] = made[0], made_map
    return found


def _groups(source: Sequence[int], result: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Neighbouring axes of a reshaped tensor that hold the same elements, as few as possible."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) or j < len(result):
        before, after = [], []
        one = other = 1
        if i < len(source):
            before.append(i)
            one, i = source[i], i + 1
        if j < len(result):
            after.append(j)
            other, j = result[j], j + 1
        while one != other:
            if one < other and i < len(source):
                before.append(i)
                one, i = one * source[i], i + 1
            elif j < len(result):
                after.append(j)
                other, j = other * result[j], j + 1
            else:
                return groups  # of no elements
        groups.append((before, after))
    return groups


def _slice(read: Read) -> Routes:
    attributes = read.node.attributes
    pairs = enumerate(zip(attributes["starts"], attributes["steps"], strict=True))
    return {axis: (axis, window_map(step, start, 1)) for axis, (start, step) in pairs if step > 0}


def _split(read: Read) -> Routes:
    axis, sizes = read.node.attributes["axis"], read.node.attributes["sizes"]
    start = list(accumulate(sizes, initial=0))[read.result]
    found = dict(_without(read, (axis,), True))
    found[axis] = axis, window_map(1, start, 1)
    return found


def _pad(read: Read) -> Routes:
    begin = read.node.attributes["pads"][: len(read.shape)]
    return {axis: (axis, window_map(1, -before, 1)) for axis, before in enumerate(begin)}


def _resized(read: Read) -> Routes:
    """Axes by their tables, where these repeat themselves; all others as they are."""
    found: dict[int, tuple[int, AxisMap]] = {}
    for axis, extent in enumerate(read.shape):
        table = axis_table(read.node, axis, extent, read.given.dtype)
        if table is None:
            found[axis] = axis, IDENTITY
            continue
        with suppress(IrregularError):
            found[axis] = axis, table_map(*_ends(*table), extent)
    return found


def _ends(cells: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last cell that each element reads, of those whose weight is not 0."""
    used, rows = weights != 0, np.arange(len(cells))
    last = cells.shape[1] - 1 - used[:, ::-1].argmax(axis=1)
    return cells[rows, used.argmax(axis=1)], cells[rows, last]


def _gather(read: Read) -> Routes:
    """Axes beside the one that constants index."""
    axis, indices = read.node.attributes["axis"], read.kinds[1]
    assert indices is not None
    if read.operand:
        return NOWHERE
    more = len(indices.shape) - 1
    return {
        each: (each if each < axis else each + more, IDENTITY)
        for each in range(len(read.shape))
        if each != axis
    }


def _chain(read: Read) -> Routes:
    """Stages one after the other; a residual, which the last one adds, as it is."""
    if read.operand == 1:
        return _aligned(read)
    if read.operand:
        return NOWHERE
    spatial = range(2, len(read.shape))
    found: dict[int, tuple[int, AxisMap]] = {axis: (axis, IDENTITY) for axis in (0, *spatial)}
    stages: tuple[Stage, ...] = read.node.attributes["stages"]
    before = 2
    for stage in stages:
        kernel = read.kinds[before] if stage.CONSTANTS else None
        before += len(stage.CONSTANTS)
        for axis in spatial:
            found[axis] = axis, _stage_map(stage, kernel, axis).after(found[axis][1])
    return found


def _stage_map(stage: Stage, kernel: TensorType | None, axis: int) -> AxisMap:
    if isinstance(stage, ConvStage):
        assert kernel is not None
        stride, dilation, before, _ = window_steps(stage.attributes)[axis - 2]
        return window_map(stride, -before, effective_extent(kernel.shape[axis], dilation))
    if stage.OP == "Pad":
        return window_map(1, -int(stage.attributes["pads"][axis]), 1)
    return IDENTITY


RULES: Mapping[str, Callable[[Read], Routes]] = MappingProxyType(
    {
        "aligned": _aligned,
        "along axis": lambda read: _without(read, (read.node.attributes["axis"],), True),
        "along channels": lambda read: _without(read, (1,), True),
        "along last": _along_last,
        "attention": _attention,
        "chain": _chain,
        "convolution": _convolution,
        "first": _of_first,
        "gather": _gather,
        "gemm": _gemm,
        "pad": _pad,
        "pooled": lambda read: _without(read, range(2, len(read.shape)), True),
        "product": _product,
        "reduced": _reduction,
        "reduced axis": _extreme,
        "reshape": _reshape,
        "resized": _resized,
        "slice": _slice,
        "split": _split,
        "transpose": lambda read: {
            axis: (to, IDENTITY) for to, axis in enumerate(read.node.attributes["perm"])
        },
        "transposed convolution": _transposed,
        "windows": _pool,
        "windows and places": _pool,
    }
)

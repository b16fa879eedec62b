"""Random networks that move elements of all types by index, exact, with indices that are data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from leanconv.types import (
    BOOL,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT64,
    DType,
    as_dtype,
)

ALL = (FLOAT32, FLOAT64, INT8, UINT8, INT16, UINT16, INT32, INT64, UINT64, BOOL)
COUNTED = (FLOAT32, FLOAT64, INT32, INT64)
Shape = tuple[int, ...]
_MOST = 4000  # elements of a value


class MovingNetwork:
    """A network of inputs of several types and shapes; what each of its values is, is known.

    Args:
        seed: decides.
        steps: how many operations there are, about.
        empty: whether extents of 0 are among the shapes.
    """

    def __init__(self, seed: int, steps: int = 10, empty: bool = False) -> None:
        self.random, self.empty = Random(seed), empty
        self.nodes: list[onnx.NodeProto] = []
        self.given: dict[str, np.ndarray] = {}
        self.held: dict[str, np.ndarray] = {}
        self.values: list[tuple[str, DType, Shape]] = []
        for _ in range(3):
            self.add_input(self.random.choice(ALL), self.shape(self.random.randint(1, 4)))
        while len(self.values) < steps + 3:
            self.random.choice(STEPS)(self)

    def model(self) -> onnx.ModelProto:
        """All values that nothing reads are outputs."""
        read = {name for node in self.nodes for name in node.input}
        made = {name for node in self.nodes for name in node.output}
        ends = [(n, kind) for n, kind, _ in self.values if n in made and n not in read]
        inputs = [
            helper.make_tensor_value_info(n, as_dtype(a.dtype).onnx, a.shape)
            for n, a in self.given.items()
        ]
        outputs = [helper.make_tensor_value_info(n, kind.onnx, None) for n, kind in ends]
        held = [numpy_helper.from_array(array, name) for name, array in self.held.items()]
        graph = helper.make_graph(self.nodes, "moving", inputs, outputs, held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    # -- parts ------------------------------------------------------------------------------------
    def extent(self) -> int:
        """Of an axis: often small and odd."""
        if self.empty and self.random.random() < 0.15:
            return 0
        return self.random.choice((1, 1, 2, 3, 4, 5, 7, 9, 16, 17))

    def shape(self, rank: int) -> Shape:
        """Of a value that is not too large."""
        while prod(shape := tuple(self.extent() for _ in range(rank))) > _MOST:
            pass
        return shape

    def numbers(self, kind: DType, shape: Shape) -> np.ndarray:
        """Small numbers that every type holds."""
        random = np.random.default_rng(self.random.randrange(1 << 30))
        return random.integers(0, 2 if kind == BOOL else 4, shape).astype(kind)

    def add_input(self, kind: DType, shape: Shape) -> str:
        """An input of small numbers."""
        return self.input_of(self.numbers(kind, shape))

    def input_of(self, array: np.ndarray) -> str:
        """An input that is given an array."""
        name = f"x{len(self.given)}"
        self.given[name] = array
        self.values.append((name, as_dtype(array.dtype), array.shape))
        return name

    def constant(self, numbers: Any, kind: DType = INT64) -> str:
        """A constant in the file."""
        name = f"c{len(self.held)}"
        self.held[name] = np.asarray(numbers).astype(kind)
        return name

    def operand(self, array: np.ndarray) -> str:
        """An array as an input, sometimes as a constant."""
        if self.random.random() < 0.3:
            return self.constant(array, as_dtype(array.dtype))
        return self.input_of(array)

    def node(self, op: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> str:
        """Add a node; the name of its first output, of which the others have a suffix."""
        name = f"v{len(self.nodes)}"
        names = [name, *(f"{name}_{number}" for number in range(1, outputs))]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return name

    def keep(self, name: str, kind: DType, shape: Sequence[int]) -> None:
        """A value that later nodes may read, unless it is too large."""
        if prod(shape) <= _MOST:
            self.values.append((name, kind, tuple(shape)))

    def some(self, rank: int = 1, kinds: Sequence[DType] = ALL) -> tuple[str, DType, Shape]:
        """A late value of at least some rank, of one of some types; an input if there is none."""
        fits = [v for v in self.values if len(v[2]) >= rank and v[1] in kinds]
        if not fits or self.random.random() < 0.1:
            kind, shape = self.random.choice(kinds), self.shape(self.random.randint(rank, 4))
            return self.add_input(kind, shape), kind, shape
        return self.random.choice(fits[-4:])

    def indices(self, shape: Shape, extents: Sequence[int], *, unique: bool = False) -> np.ndarray:
        """Lists of indices of some axes, of both signs; `unique` for ones that all differ."""
        random = np.random.default_rng(self.random.randrange(1 << 30))
        if unique:
            flat = random.permutation(prod(extents))[: prod(shape)]
            found = np.stack(np.unravel_index(flat, extents), axis=-1).reshape(*shape, len(extents))
            found = found - np.asarray(extents) * random.integers(0, 2, found.shape)
        else:
            found = np.stack([random.integers(-e, e, shape) for e in extents], axis=-1)
        return found.astype(self.random.choice((INT32, INT64)))


def _gather(net: MovingNetwork) -> None:
    x, kind, shape = net.some()
    axis = net.random.randrange(len(shape))
    own = net.shape(net.random.randint(0, 2))
    if not shape[axis]:
        own = (0,)
    at = net.indices(own, [max(shape[axis], 1)])[..., 0]
    y = net.node("Gather", [x, net.operand(at)], axis=axis)
    net.keep(y, kind, (*shape[:axis], *own, *shape[axis + 1 :]))


def _gather_elements(net: MovingNetwork) -> None:
    x, kind, shape = net.some()
    axis = net.random.randrange(len(shape))
    own = [net.random.randint(min(e, 1), e) for e in shape]
    own[axis] = net.extent() if shape[axis] else 0
    at = net.indices(tuple(own), [max(shape[axis], 1)])[..., 0]
    net.keep(net.node("GatherElements", [x, net.operand(at)], axis=axis), kind, own)


def _gather_nd(net: MovingNetwork) -> None:
    x, kind, shape = net.some(2)
    batch = net.random.randrange(len(shape))
    depth = net.random.randint(1, len(shape) - batch)
    found = shape[batch : batch + depth]
    own = (*shape[:batch], net.extent() if prod(found) else 0)
    at = net.indices(own, [max(e, 1) for e in found]).astype(INT64)
    y = net.node("GatherND", [x, net.operand(at)], batch_dims=batch)
    net.keep(y, kind, (*own, *shape[batch + depth :]))


def _reduction(net: MovingNetwork, kind: DType) -> str:
    return net.random.choice(("none", "add", "mul", "min", "max")) if kind in COUNTED else "none"


def _scatter_elements(net: MovingNetwork) -> None:
    """Updates that replace elements replace different ones, else ONNX says nothing."""
    x, kind, shape = net.some()
    axis, reduction = net.random.randrange(len(shape)), _reduction(net, kind)
    own = [net.random.randint(min(e, 1), e) for e in shape]
    if reduction == "none":
        order = np.random.default_rng(1).permutation(shape[axis])[: own[axis]]
        line = order.reshape([-1 if i == axis else 1 for i in range(len(own))])
        at = np.broadcast_to(line, own).astype(INT64)
    else:
        own[axis] = net.extent() if shape[axis] else 0
        at = net.indices(tuple(own), [max(shape[axis], 1)])[..., 0]
    inputs = [x, net.operand(at), net.operand(net.numbers(kind, at.shape))]
    y = net.node("ScatterElements", inputs, axis=axis, reduction=reduction)
    net.keep(_small(net, y, kind, reduction), kind, shape)


def _scatter_nd(net: MovingNetwork) -> None:
    x, kind, shape = net.some()
    depth, reduction = net.random.randint(1, len(shape)), _reduction(net, kind)
    found = shape[:depth]
    count = net.random.randint(0, min(prod(found), 9)) if prod(found) else 0
    extents = [max(e, 1) for e in found]
    at = net.indices((count,), extents, unique=reduction == "none").astype(INT64)
    updates = net.numbers(kind, (count, *shape[depth:]))
    y = net.node("ScatterND", [x, net.operand(at), net.operand(updates)], reduction=reduction)
    net.keep(_small(net, y, kind, reduction), kind, shape)


def _small(net: MovingNetwork, name: str, kind: DType, reduction: str) -> str:
    """What was reduced, bounded, so that all that follows stays exact."""
    if reduction not in ("add", "mul"):
        return name
    return net.node("Clip", [name, net.constant(-99, kind), net.constant(99, kind)])


# -- without indices ----------------------------------------------------------------------------
def _slice(net: MovingNetwork) -> None:
    x, kind, shape = net.some()
    axis, step = net.random.randrange(len(shape)), net.random.choice((1, 1, 2, 3, -1, -2))
    start, end = (net.random.randint(-20, 20) for _ in range(2))
    places = [net.constant([number]) for number in (start, end, axis, step)]
    left = len(range(shape[axis])[start:end:step])
    y = net.node("Slice", [x, *places])
    net.keep(y, kind, (*shape[:axis], left, *shape[axis + 1 :]))


def _pad(net: MovingNetwork) -> None:
    x, kind, shape = net.some(kinds=(FLOAT32, FLOAT64, INT8, UINT8, INT32, INT64, UINT64, BOOL))
    mode, axis = net.random.choice(("constant", "edge", "reflect", "wrap")), len(shape) - 1
    axis = net.random.randint(0, axis)
    if mode != "constant" and (shape[axis] < 2 or not prod(shape)):
        mode = "constant"
    most = shape[axis] - 1 if mode in ("reflect", "wrap") else 4
    least = 0 if mode in ("reflect", "wrap") else -(shape[axis] // 2)
    before, after = (net.random.randint(least, max(most, 0)) for _ in range(2))
    inputs = [x, net.constant([before, after])]
    value = net.constant(1, kind) if mode == "constant" and net.random.random() < 0.7 else ""
    y = net.node("Pad", [*inputs, value, net.constant([axis])], mode=mode)
    net.keep(y, kind, (*shape[:axis], shape[axis] + before + after, *shape[axis + 1 :]))


def _concat(net: MovingNetwork) -> None:
    """Values that differ along the axis, one of them without elements at times."""
    x, kind, shape = net.some()
    axis, parts = net.random.randrange(len(shape)), [x]
    total = shape[axis]
    for _ in range(net.random.randint(1, 3)):
        extent = net.extent()
        own = (*shape[:axis], extent, *shape[axis + 1 :])
        if prod(own) > _MOST:
            continue
        parts.append(net.operand(net.numbers(kind, own)))
        total += extent
    net.random.shuffle(parts)
    net.keep(net.node("Concat", parts, axis=axis), kind, (*shape[:axis], total, *shape[axis + 1 :]))


def _split(net: MovingNetwork) -> None:
    x, kind, shape = net.some()
    axis = net.random.randrange(len(shape))
    first = net.random.randint(0, shape[axis])
    second = net.random.randint(0, shape[axis] - first)
    sizes = [first, second, shape[axis] - first - second]
    y = net.node("Split", [x, net.constant(sizes)], 3, axis=axis)
    for number, size in enumerate(sizes):
        name = f"{y}_{number}" if number else y
        net.keep(name, kind, (*shape[:axis], size, *shape[axis + 1 :]))


def _tile(net: MovingNetwork) -> None:
    x, kind, shape = net.some(kinds=(FLOAT32, FLOAT64, INT8, UINT8, INT32, INT64, BOOL))
    repeats = [net.random.choice((1, 1, 2, 3, 0 if net.empty else 1)) for _ in shape]
    y = net.node("Tile", [x, net.constant(repeats)])
    net.keep(y, kind, [e * r for e, r in zip(shape, repeats, strict=True)])


def _expand(net: MovingNetwork) -> None:
    x, kind, shape = net.some()
    wanted = [net.extent() if extent == 1 else extent for extent in shape]
    if len(shape) < 4 and net.random.random() < 0.5:
        wanted.insert(0, net.extent())
    net.keep(net.node("Expand", [x, net.constant(wanted)]), kind, wanted)


def _transpose(net: MovingNetwork) -> None:
    x, kind, shape = net.some()
    perm = net.random.sample(range(len(shape)), len(shape))
    net.keep(net.node("Transpose", [x], perm=perm), kind, [shape[axis] for axis in perm])


def _reshape(net: MovingNetwork) -> None:
    x, kind, shape = net.some()
    way = net.random.randrange(4)
    axis = net.random.randrange(len(shape))
    if way == 0:
        wanted = (prod(shape[:axis]), prod(shape[axis:]))
        net.keep(net.node("Flatten", [x], axis=axis), kind, wanted)
    elif way == 1 and len(shape) < 5:
        y = net.node("Unsqueeze", [x, net.constant([axis])])
        net.keep(y, kind, (*shape[:axis], 1, *shape[axis:]))
    elif way == 2 and shape[axis] == 1 and len(shape) > 1:
        y = net.node("Squeeze", [x, net.constant([axis])])
        net.keep(y, kind, (*shape[:axis], *shape[axis + 1 :]))
    else:
        y = net.node("Reshape", [x, net.constant([prod(shape)])], allowzero=1)
        net.keep(y, kind, (prod(shape),))


def _blocks(net: MovingNetwork) -> None:
    shape = (net.extent(), 4 * net.extent(), 2 * net.extent(), 2 * net.extent())
    if prod(shape) > _MOST:
        return
    kind = net.random.choice((FLOAT32, FLOAT64, UINT8))
    x, (n, c, h, w) = net.add_input(kind, shape), shape
    if net.random.random() < 0.5:
        mode = net.random.choice(("DCR", "CRD"))
        y = net.node("DepthToSpace", [x], blocksize=2, mode=mode)
        net.keep(y, kind, (n, c // 4, 2 * h, 2 * w))
    elif kind != UINT8:
        net.keep(net.node("SpaceToDepth", [x], blocksize=2), kind, (n, 4 * c, h // 2, w // 2))


def _reduce(net: MovingNetwork) -> None:
    """A sum, over no elements, too."""
    x, kind, shape = net.some(kinds=COUNTED)
    axes = sorted(net.random.sample(range(len(shape)), net.random.randint(1, len(shape))))
    op, keep = net.random.choice(("ReduceSum", "ReduceProd")), net.random.randint(0, 1)
    y = net.node(op, [x, net.constant(axes)], keepdims=keep)
    left = [1 if i in axes else extent for i, extent in enumerate(shape) if keep or i not in axes]
    if left:
        net.keep(_small(net, y, kind, "add"), kind, left)


def _product(net: MovingNetwork) -> None:
    """A matrix product, of no columns and rows, too."""
    x, kind, shape = net.some(2, (FLOAT32, FLOAT64))
    columns = net.extent()
    if prod(shape[:-1]) * columns > _MOST:
        return
    other = net.operand(net.numbers(kind, (shape[-1], columns)))
    y = net.node("MatMul", [x, other])
    net.keep(_small(net, y, kind, "add"), kind, (*shape[:-1], columns))


def _resize(net: MovingNetwork) -> None:
    x, kind, shape = net.some(4, (FLOAT32, INT32, UINT8, INT8))
    if not prod(shape):
        return
    sizes = [*shape[:2], *(net.random.choice((1, 2, 3, 5)) * extent for extent in shape[2:])]
    if prod(sizes) <= _MOST:
        y = net.node("Resize", [x, "", "", net.constant(sizes)], mode="nearest")
        net.keep(y, kind, sizes)


STEPS: tuple[Callable[[MovingNetwork], None], ...] = (
    _gather,
    _gather_elements,
    _gather_nd,
    _scatter_elements,
    _scatter_nd,
    _slice,
    _pad,
    _concat,
    _split,
    _tile,
    _expand,
    _transpose,
    _reshape,
    _blocks,
    _reduce,
    _product,
    _resize,
)

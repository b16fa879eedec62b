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


STEPS: tuple[Callable[[MovingNetwork], None], ...] = (
    _gather,
    _gather_elements,
    _gather_nd,
    _scatter_elements,
    _scatter_nd,
)

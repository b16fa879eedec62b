"""Normalisation of lines by their own mean and variance, in one kernel.

    y[r, i] = (x[r, i] - m[r]) / sqrt(v[r] + epsilon) · scale + bias

with m the mean of a line r and v that of (x - m)^2; in RMSNormalization m is 0. Scale and bias are
numbers of the places of a line (LayerNormalization), or of each line (InstanceNormalization). A
line is read three times, from the second time on from a cache. Lanes run along it; in blocks of
channels, where a line is every `inner`-th element, along the channels. What is taken away before it
is squared keeps a variance's digits however far the data lie from 0; sums are those of `reduce`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.tails import where_any
from leanconv.graph.ir import Graph, Node, in_rows
from leanconv.graph.ops.algebra import numbers_of
from leanconv.kernels import InPieces, KernelContext
from leanconv.kernels.lane_reduce import across_lanes, run_of
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Extent, Symbol
from leanconv.target import Target
from leanconv.types import DType


@dataclass(frozen=True)
class Normalise(InPieces):
    """Lines of a tensor (rows, extent, inner).

    Attributes:
        dtype: of all values, float32 or float64.
        epsilon: added to the variance.
        rows, extent: lines (vectors of them in blocks), and their places.
        inner: 1, or the channels of a block.
        scale, bias: where their numbers lie: "place", "line" or "", which is none.
        period: lines after which the numbers of lines repeat themselves.
        centred: whether the mean is taken away.
    """

    VARIES = True

    dtype: DType
    epsilon: float
    rows: Extent
    extent: Extent
    inner: int
    scale: str
    bias: str
    period: int
    centred: bool = True

    @property
    def operands(self) -> tuple[str, ...]:
        scale, bias = ("scale",) if self.scale else (), ("bias",) if self.bias else ()
        return ("x", *scale, *bias, "y")

    @property
    def items(self) -> int:
        return self.rows

    @property
    def elements(self) -> int:
        return max(1, self.rows * self.extent * self.inner)

    @property
    def flops(self) -> int:
        return 7 * self.rows * self.extent * self.inner

    def emit(self, target: Target) -> str:
        e = Function(self.NAME)
        pointers = e.pointers(self.operands, self.dtype.llvm)
        with self.each_item(e, "row") as row:
            _Line(self, e, target, pointers, row).emit()
        return e.finish()


class _Line:
    def __init__(
        self, kernel: Normalise, e: Function, target: Target, given: dict[str, Pointer], row: Value
    ) -> None:
        self.k, self.e, self.given, self.row = kernel, e, given, row
        self.lanes = target.lanes(kernel.dtype)
        self.kind = vector(kernel.dtype.llvm, self.lanes)
        self.whole, left = divmod(kernel.extent, self.lanes)
        self.left = target.lanes_of_tail(left)
        start = row * (kernel.extent * kernel.inner)
        self.x, self.y = given["x"].at(start), given["y"].at(start)

    def emit(self) -> None:
        """The line, or its neighbours in a block, as many at a time as there are lanes."""
        if self.k.inner == 1:
            self._along()
            return
        with self.e.loop("lane", self.k.inner, step=self.lanes) as lane:
            self._across(lane)

    # -- lanes along a line ----------------------------------------------------------------
    def _along(self) -> None:
        e, k = self.e, self.k

        def load(place: Value, count: int) -> Value:
            return e.load_first(self.x.at(place), self.kind, count)

        mean = self._mean(load) if k.centred else None

        def centred_at(place: Value, count: int) -> Value:
            loaded = load(place, count)
            return loaded if mean is None else loaded - mean

        def squared(place: Value, count: int) -> Value:
            centred = centred_at(place, count)
            if k.centred and (
                isinstance(count, Symbol) or count < self.lanes
            ):  # lanes beyond the line are not 0 without the mean
                centred = e.select(e.first_lanes(count, self.lanes), centred, e.zero(self.kind))
            return centred * centred

        factor = self._inverse(self._mean(squared))
        scale, bias = (self._of_line(name, e.broadcast) for name in ("scale", "bias"))
        factor = factor if scale is None else factor * scale

        def result(place: Value, count: int) -> None:
            value = centred_at(place, count) * factor
            if k.scale == "place":
                value = value * e.load_first(self.given["scale"].at(place), self.kind, count)
            if k.bias == "place":
                value = value + e.load_first(self.given["bias"].at(place), self.kind, count)
            value = value if bias is None else value + bias
            e.store_first(value, self.y.at(place), count)

        for _ in where_any(e, self.whole):
            with e.loop("i", self.whole) as i:
                result(i * self.lanes, self.lanes)
        for _ in where_any(e, self.left):
            result(e.i64(self.whole * self.lanes), self.left)

    def _mean(self, load: Callable[[Value, int], Value]) -> Value:
        e, total = self.e, [self.e.zero(self.kind)]
        for _ in where_any(e, self.whole, [total]):
            total[:] = run_of(
                e, "sum", lambda i: [load(i * self.lanes, self.lanes)], self.whole, [self.kind]
            )
        for _ in where_any(e, self.left, [total]):
            total[0] += load(e.i64(self.whole * self.lanes), self.left)
        return e.splat(across_lanes(e, "sum", total[0]) / self.k.extent, self.lanes)

    # -- lanes across lines ----------------------------------------------------------------
    def _across(self, lane: Value) -> None:
        e, k = self.e, self.k
        x, y = self.x.at(lane), self.y.at(lane)

        def load(i: Value) -> Value:
            return e.load(x.at(i * k.inner), self.kind)

        def squared(i: Value) -> Value:
            centred = load(i) - mean
            return centred * centred

        def numbers(at: Pointer, kind: str) -> Value:
            return e.load(at.at(lane), kind)

        (total,) = run_of(e, "sum", lambda i: [load(i)], k.extent, [self.kind])
        mean = total / k.extent
        (total,) = run_of(e, "sum", lambda i: [squared(i)], k.extent, [self.kind])
        factor = self._inverse(total / k.extent)
        scale, bias = (self._of_line(name, numbers) for name in ("scale", "bias"))
        factor = factor if scale is None else factor * scale
        with e.loop("i", k.extent) as i:
            value = (load(i) - mean) * factor
            value = value if bias is None else value + bias
            e.store(value, y.at(i * k.inner))

    # -- numbers ---------------------------------------------------------------------------
    def _inverse(self, variance: Value) -> Value:
        return 1.0 / self.e.unary("sqrt", variance + self.k.epsilon)

    def _of_line(self, name: str, load: Callable[[Pointer, str], Value]) -> Value | None:
        """The line's number of an operand that has one for each; in blocks, those of all lanes."""
        if {"scale": self.k.scale, "bias": self.k.bias}[name] != "line":
            return None
        number = self.row % self.k.period
        return load(self.given[name].at(number * self.k.inner), self.kind)


def accepts_blocked(node: Node, graph: Graph, block: int) -> bool:
    """True where lines are planes of channels, and what fills a block stays finite."""
    shape, first = graph.types[node.inputs[0]].shape, node.attributes["first"]
    held = (graph.types[name].shape for name in node.inputs[1:] if name)
    of_lines = all(numbers_of(each, shape, first) == "line" for each in held)
    finite = node.attributes["epsilon"] > 0 or shape[1] % block == 0
    plane = len(shape) >= 3 and first == 2 and node.attributes["centred"]
    return plane and of_lines and finite


def lower(context: KernelContext) -> Lowered:
    """One kernel, which may work in place."""
    node, graph, formats = context.node, context.graph, context.formats
    x, y = node.inputs[0], node.output
    kind, first, block = graph.types[x], node.attributes["first"], formats[y].block
    shape = kind.shape
    channels = shape[1] if first == 2 else 1
    period, inner = (ceil_div(channels, block), block) if block else (channels, 1)
    rows = shape[0] * period if block else prod(shape[:first])
    constants: dict[str, np.ndarray] = {}
    where = {"scale": "", "bias": ""}
    for role, name in zip(where, node.inputs[1:], strict=False):
        if name:
            array = graph.constants[name]
            where[role] = numbers_of(array.shape, shape, first)
            if where[role] == "line":
                array = np.broadcast_to(array.reshape(-1), (channels,))  # one may be for all lines
            if where[role] == "line" and block:
                spread = np.zeros(period * inner, array.dtype)
                spread[:channels] = array
                array = spread
            constants[f"{y}.{role}"] = in_rows(array).reshape(-1)
    kernel = Normalise(
        dtype=kind.dtype,
        epsilon=node.attributes["epsilon"],
        rows=rows,
        extent=prod(shape[first:]),
        inner=inner,
        **where,
        period=period,
        centred=node.attributes["centred"],
    )
    return Lowered((Call(kernel, (x, *constants, y), (0,)),), constants, algorithm="normalise")

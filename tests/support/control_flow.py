"""Models with graphs inside nodes, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DTYPES = {"float": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node from names that spaces separate; `-` is an absent one."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attributes)


def graph(
    nodes: Sequence[onnx.NodeProto],
    outputs: str,
    inputs: Mapping[str, str] | None = None,
    held: Mapping[str, Any] | None = None,
    kinds: Mapping[str, str] | None = None,
) -> onnx.GraphProto:
    """A graph that a node holds.

    Args:
        nodes: in order.
        outputs: names that spaces separate.
        inputs: their dtypes; those of floats are of any shape, others scalars.
        held: initialisers.
        kinds: the dtypes of outputs that are not float.
    """
    return helper.make_graph(
        list(nodes),
        "held",
        [
            value(name, kind, None if kind == "float" else ())
            for name, kind in (inputs or {}).items()
        ],
        [value(name, (kinds or {}).get(name, "float")) for name in outputs.split()],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in (held or {}).items()],
    )


def value(name: str, kind: str, shape: tuple[int, ...] | None = None) -> onnx.ValueInfoProto:
    """A value of a dtype, and of any shape where none is given."""
    return helper.make_tensor_value_info(name, DTYPES[kind], shape)


def branch(
    condition: str, outputs: str, then: onnx.GraphProto, other: onnx.GraphProto
) -> onnx.NodeProto:
    """An If."""
    return node("If", condition, outputs, then_branch=then, else_branch=other)


class RandomFlow:
    """Random networks of maps (N, 3, H, W), with branches on sizes and loops inside each other.

    Every graph reads what is there in those around it. All maps are of the input's shape.

    Args:
        seed: of all that is random.
        deepest: graphs inside each other.
        least, most: iterations of a loop.
        numbered: whether some loops read the numbers of their iterations.
    """

    def __init__(
        self, seed: int, deepest: int = 3, least: int = 1, most: int = 4, numbered: bool = True
    ) -> None:
        self._random = np.random.default_rng(seed)
        self._deepest, self._least, self._most, self._numbered = deepest, least, most, numbered
        self._count = 0

    def model(self) -> onnx.ModelProto:
        """A model of one input `x` of any size and of two outputs."""
        nodes, maps = self._nodes(["x"], 0)
        nodes += [node("Identity", maps[-1], "y"), node("Add", f"{maps[-1]} x", "z")]
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("N", 3, "H", "W"))]
        outputs = [value("y", "float"), value("z", "float")]
        whole = helper.make_graph(nodes, "network", inputs, outputs)
        return helper.make_model(whole, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def _new(self, hint: str) -> str:
        self._count += 1
        return f"{hint}{self._count}"

    def _constant(self, array: Any) -> tuple[onnx.NodeProto, str]:
        name = self._new("k")
        return node("Constant", "", name, value=numpy_helper.from_array(np.asarray(array))), name

    def _nodes(self, maps: Sequence[str], depth: int) -> tuple[list[onnx.NodeProto], list[str]]:
        """Nodes that make further maps of those that are there, and all maps."""
        nodes: list[onnx.NodeProto] = []
        held = list(maps)
        for _ in range(self._random.integers(2, 5)):
            makers = [self._layer, self._pointwise]
            if depth < self._deepest:
                makers += [self._if, self._if, self._loop]
            made, name = makers[self._random.integers(len(makers))](held, depth)
            nodes += made
            held.append(name)
        return nodes, held

    def _some(self, maps: Sequence[str]) -> str:
        return maps[-1 - int(self._random.integers(min(4, len(maps))))]

    def _layer(self, maps: Sequence[str], depth: int) -> tuple[list[onnx.NodeProto], str]:
        del depth
        size = int(self._random.choice([1, 3]))
        weights = self._random.standard_normal((3, 3, size, size)).astype("f4") / (3 * size)
        held, w = self._constant(weights)
        out = self._new("conv")
        return [held, node("Conv", f"{self._some(maps)} {w}", out, pads=[size // 2] * 4)], out

    def _pointwise(self, maps: Sequence[str], depth: int) -> tuple[list[onnx.NodeProto], str]:
        del depth
        out = self._new("p")
        a, b = self._some(maps), self._some(maps)
        if self._random.integers(2):
            return [node(str(self._random.choice(["Add", "Sub", "Max"])), f"{a} {b}", out)], out
        return [node(str(self._random.choice(["Relu", "Tanh", "Neg"])), a, out)], out

    def _if(self, maps: Sequence[str], depth: int) -> tuple[list[onnx.NodeProto], str]:
        nodes, condition = self._condition(maps)
        graphs = []
        for _ in range(2):
            inner, held = self._nodes(maps, depth + 1)
            out = self._new("b")
            graphs.append(graph([*inner, node("Identity", held[-1], out)], out))
        out = self._new("if")
        return [*nodes, branch(condition, out, *graphs)], out

    def _loop(self, maps: Sequence[str], depth: int) -> tuple[list[onnx.NodeProto], str]:
        """A loop of some iterations; each may read its number and give a row of a result."""
        nodes, count = self._trip_count(maps)
        i, on, state, more = (self._new(hint) for hint in ("i", "on", "s", "more"))
        inner, held = self._nodes([*maps, state], depth + 1)
        out, row = self._new("b"), self._new("r")
        number, scaled = self._new("f"), self._new("t")
        inner += [
            node("Identity", on, more),
            node("Cast", i, number, to=TensorProto.FLOAT),
            node("Mul", f"{held[-1]} {number}", scaled),
            node("Tanh", scaled if self._random.integers(2) and self._numbered else held[-1], out),
            node("Identity", self._some(held), row),
        ]
        body = graph(
            inner,
            f"{more} {out} {row}",
            {i: "int64", on: "bool", state: "float"},
            kinds={more: "bool"},
        )
        last, rows, total = (self._new(hint) for hint in ("last", "rows", "loop"))
        nodes += [
            node("Loop", f"{count} - {self._some(maps)}", f"{last} {rows}", body=body),
            node("ReduceMax", rows, joined := self._new("j"), axes=[0], keepdims=0),
            node("Add", f"{last} {joined}", total),
        ]
        return nodes, total

    def _trip_count(self, maps: Sequence[str]) -> tuple[list[onnx.NodeProto], str]:
        """Given or made of a size."""
        number, n = self._constant(np.int64(self._random.integers(self._least, self._most + 1)))
        if self._random.integers(2):
            return [number], n
        axis, ax = self._constant(np.int64(self._random.choice([0, 2, 3])))
        one, least = self._constant(np.int64(self._least))
        shape, size, rest, count = (self._new(hint) for hint in ("s", "g", "m", "n"))
        return [
            number,
            axis,
            one,
            node("Shape", self._some(maps), shape),
            node("Gather", f"{shape} {ax}", size),
            node("Mod", f"{size} {n}", rest),
            node("Add", f"{rest} {least}", count),
        ], count

    def _condition(self, maps: Sequence[str]) -> tuple[list[onnx.NodeProto], str]:
        """A comparison of what arithmetic makes of sizes, or logic of two such."""
        nodes, names = [], []
        for _ in range(self._random.integers(1, 3)):
            axis, ax = self._constant(np.int64(self._random.choice([0, 2, 3])))
            number, n = self._constant(np.int64(self._random.integers(1, 5)))
            limit, least = self._constant(np.int64(self._random.integers(0, 9)))
            shape, size, moved, out = (self._new(hint) for hint in ("s", "g", "m", "c"))
            nodes += [
                axis,
                number,
                limit,
                node("Shape", self._some(maps), shape),
                node("Gather", f"{shape} {ax}", size),
                node(str(self._random.choice(["Add", "Mul", "Div", "Mod"])), f"{size} {n}", moved),
                node(
                    str(self._random.choice(["Less", "Greater", "Equal"])), f"{moved} {least}", out
                ),
            ]
            names.append(out)
        if len(names) == 1:
            return nodes, names[0]
        joined, out = self._new("c"), self._new("c")
        op = str(self._random.choice(["And", "Or"]))
        return [*nodes, node(op, " ".join(names), joined), node("Not", joined, out)], out

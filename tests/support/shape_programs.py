"""Random arithmetic on the extents of an input, as nodes of a model that gives all its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

INT, INT32, FLOAT, BOOL = 7, 6, 1, 9  # ONNX's numbers of the dtypes
_NAMES = {INT: np.int64, INT32: np.int32, FLOAT: np.float32, BOOL: np.bool_}


@dataclass
class ShapeProgram:
    """Nodes that compute lists of numbers from the shape of `x`, float32 of rank 4.

    Attributes:
        random: decides.
        nodes, constants: of the model so far.
        lists: of each dtype the lists that there are, a name and a length each.
    """

    random: Random
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    lists: dict[int, list[tuple[str, int]]] = field(
        default_factory=lambda: {INT: [], INT32: [], FLOAT: [], BOOL: []}
    )

    def node(self, op: str, inputs: list[str], **attributes: Any) -> str:
        """Add a node; the name of its output."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def constant(self, numbers: Any, kind: int = INT) -> str:
        """Add a constant."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.array(numbers, _NAMES[kind])
        return name

    def keep(self, name: str, kind: int, length: int) -> None:
        """A list that later nodes may read."""
        self.lists[kind].append((name, length))

    def begin(self) -> None:
        """Height, width, and both."""
        shape = self.node("Shape", ["x"])
        for places in ([2], [3], [2, 3]):
            self.keep(self.node("Gather", [shape, self.constant(places)]), INT, len(places))

    def some(self, kind: int = INT, length: int | None = None) -> tuple[str, int]:
        """A list of a dtype: one that there is, or a constant."""
        known = [each for each in self.lists[kind] if length is None or each[1] in (1, length)]
        if known and self.random.random() < 0.75:
            return self.random.choice(known)
        count = length or self.random.randint(1, 3)
        numbers = [self.random.choice((-7, -3, -2, -1, 0, 1, 2, 3, 4, 8, 16)) for _ in range(count)]
        return self.constant(numbers, kind), count

    def grow(self) -> None:
        """Add one random operation."""
        self.random.choice(_STEPS)(self)

    def model(self) -> onnx.ModelProto:
        """All results but the constants are outputs."""
        kinds = {name: kind for kind, held in self.lists.items() for name, _ in held}
        graph = helper.make_graph(
            self.nodes,
            "shapes",
            [helper.make_tensor_value_info("x", FLOAT, ["N", 3, "H", "W"])],
            [
                helper.make_tensor_value_info(name, kind, None)
                for name, kind in kinds.items()
                if name not in self.constants
            ],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def _binary(program: ShapeProgram) -> None:
    op = program.random.choice(("Add", "Sub", "Mul", "Div", "Div", "Mod", "Mod", "Min", "Max"))
    kind = program.random.choice((INT, INT, INT, INT32))
    if op == "Mod":
        _operated(program, op, kind, fmod=program.random.randint(0, 1))
    else:
        _operated(program, op, kind)


def _operated(program: ShapeProgram, op: str, kind: int, **attributes: Any) -> None:
    a, count = program.some(kind)
    b, other = program.some(kind, count)
    program.keep(program.node(op, [a, b], **attributes), kind, max(count, other))


def _power(program: ShapeProgram) -> None:
    a, count = program.some()
    exponent = program.constant([program.random.randint(0, 3)])
    program.keep(program.node("Pow", [a, exponent]), INT, count)


def _unary(program: ShapeProgram) -> None:
    a, count = program.some()
    op = program.random.choice(("Neg", "Abs", "Sign", "Relu"))
    program.keep(program.node(op, [a]), INT, count)


def _clip(program: ShapeProgram) -> None:
    a, count = program.some()
    low, high = (program.constant(n) for n in (program.random.randint(-3, 3), 9))
    program.keep(program.node("Clip", [a, low, high]), INT, count)


def _reduce(program: ShapeProgram) -> None:
    op = program.random.choice(("ReduceSum", "ReduceProd", "ReduceMean", "ReduceMax", "ReduceMin"))
    a, _ = program.some(INT32 if op == "ReduceMean" else INT)  # as ONNX Runtime has them
    name = program.node(op, [a, program.constant([0])], keepdims=1)
    program.keep(name, INT32 if op == "ReduceMean" else INT, 1)


def _compare(program: ShapeProgram) -> None:
    op = program.random.choice(("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"))
    a, count = program.some()
    b, other = program.some(INT, count)
    program.keep(program.node(op, [a, b]), BOOL, max(count, other))


def _logic(program: ShapeProgram) -> None:
    if program.lists[BOOL]:
        a, count = program.random.choice(program.lists[BOOL])
        program.keep(program.node("Not", [a]), BOOL, count)


def _where(program: ShapeProgram) -> None:
    if program.lists[BOOL]:
        chosen, count = program.random.choice(program.lists[BOOL])
        a, one = program.some(INT, count)
        b, other = program.some(INT, count)
        program.keep(program.node("Where", [chosen, a, b]), INT, max(count, one, other))


def _cast(program: ShapeProgram) -> None:
    kind = program.random.choice((INT, INT32, FLOAT, BOOL))
    to = program.random.choice((INT, INT32, FLOAT, BOOL))
    if program.lists[kind]:
        a, count = program.random.choice(program.lists[kind])
        program.keep(program.node("Cast", [a], to=to), to, count)


def _rounded(program: ShapeProgram) -> None:
    """A float of the extents, scaled and rounded, as exporters write sizes."""
    a, count = program.some()
    scaled = program.node("Cast", [a], to=FLOAT)
    factor = program.constant([program.random.choice((0.5, 0.25, 2.0, 1.5, 0.3, 0.1))], FLOAT)
    scaled = program.node(program.random.choice(("Mul", "Div")), [scaled, factor])
    rounding = program.random.choice(("Floor", "Ceil", "Round", "Abs"))
    scaled = program.node(rounding, [scaled])
    program.keep(program.node("Cast", [scaled], to=INT), INT, count)


def _joined(program: ShapeProgram) -> None:
    (a, one), (b, other) = program.some(), program.some()
    if one + other <= 8:
        program.keep(program.node("Concat", [a, b], axis=0), INT, one + other)


def _gathered(program: ShapeProgram) -> None:
    a, count = program.some()
    place = program.random.randint(-count, count - 1)
    program.keep(program.node("Gather", [a, program.constant([place])]), INT, 1)


def _sliced(program: ShapeProgram) -> None:
    a, count = program.some()
    backwards = program.random.randint(0, 1)
    ends = ([-1], [-(1 << 62)], [0], [-1]) if backwards else ([0], [1 << 62], [0], [1])
    program.keep(program.node("Slice", [a, *map(program.constant, ends)]), INT, count)


def _expanded(program: ShapeProgram) -> None:
    a, count = program.some(INT, 1)
    if count == 1:
        program.keep(program.node("Expand", [a, program.constant([2])]), INT, 2)


def _reshaped(program: ShapeProgram) -> None:
    a, count = program.some()
    column = program.node("Unsqueeze", [a, program.constant([1])])
    row = program.node("Transpose", [column], perm=[1, 0])
    program.keep(program.node("Squeeze", [row, program.constant([0])]), INT, count)


def _tiled(program: ShapeProgram) -> None:
    a, count = program.some()
    if count <= 2:
        program.keep(program.node("Tile", [a, program.constant([2])]), INT, 2 * count)


def _range(program: ShapeProgram) -> None:
    """A Range that begins at an extent; how long it is, its numbers do not decide."""
    a, count = program.some(INT, 1)
    if count == 1:
        start = program.node("Squeeze", [a, program.constant([0])])
        step = program.random.choice((-5, -1, 1, 2))
        end = program.node("Add", [start, program.constant(3 * step)])
        program.keep(program.node("Range", [start, end, program.constant(step)]), INT, 3)


_STEPS: tuple[Callable[[ShapeProgram], None], ...] = (
    *(_binary,) * 8,
    *(_where, _compare, _reduce, _cast, _rounded, _joined) * 2,
    *(_power, _unary, _clip, _logic, _gathered, _sliced, _expanded, _reshaped, _tiled, _range),
)

"""Random networks on data of many types, exact in every one: floats hold small integers, too."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from leanconv.types import (
    BOOL,
    DTYPES,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    UINT8,
    DType,
)

COUNTED = (INT32, INT64, FLOAT32, FLOAT64)  # in which ONNX Runtime has all arithmetic
FLOATING = (FLOAT32, FLOAT64)
_SMALL = tuple(each for each in DTYPES if each in ("int16", "uint16", "uint32", "uint64"))
ALL = (*COUNTED, BOOL, UINT8, INT8, FLOAT16)
Axes = tuple[bool, ...]  # of an image: whether an axis has its extent, not 1
_IMAGE: Axes = (True,) * 4


class TypedNetwork:
    """A network of inputs `x`, `u` and `i` (float32, uint8, int64) of one shape, N x 3 x H x W.

    Args:
        seed: decides.
        steps: how many operations there are, about.
        chains: whether there are chains of elementwise operations alone.
    """

    def __init__(self, seed: int, steps: int = 12, chains: bool = False) -> None:
        self.random = Random(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.held: dict[str, np.ndarray] = {}
        self.values: list[tuple[str, DType, Axes]] = [
            ("x", FLOAT32, _IMAGE),
            ("u", UINT8, _IMAGE),
            ("i", INT64, _IMAGE),
        ]
        kinds = (_arithmetic, _arithmetic, _cast, _cast, _compare, _logic, _where, _where, _scale)
        more = (
            _pool,
            _modulo,
            _place,
            _top,
            _sign,
            _conv,
            _extent,
            _join,
            _move,
            _move,
            _swap,
            _not_finite,
            _bits,
            _power,
            _piecewise,
            _reduce,
            _running,
            _triangle,
            _quantise,
            _dequantise,
            _chain,
        )
        while len(self.values) < steps + 3:
            self.random.choice((_chain,) if chains else (*kinds, *more))(self)

    def inputs(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Arrays for it."""
        random = np.random.default_rng(self.random.randrange(1 << 30))
        return {
            "x": random.integers(-9, 10, shape).astype("f4"),
            "u": random.integers(0, 256, shape, np.uint8),
            "i": random.integers(-300, 300, shape),
        }

    def model(self) -> onnx.ModelProto:
        """All values that nothing reads are outputs."""
        read = {name for node in self.nodes for name in node.input}
        ends = [(name, kind) for name, kind, _ in self.values[3:] if name not in read]
        given = [
            helper.make_tensor_value_info(name, _number(kind), ["N", 3, "H", "W"])
            for name, kind, _ in self.values[:3]
        ]
        made = [helper.make_tensor_value_info(name, _number(kind), None) for name, kind in ends]
        held = [numpy_helper.from_array(array, name) for name, array in self.held.items()]
        graph = helper.make_graph(self.nodes, "typed", given, made, held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    def node(self, op: str, inputs: list[str], **attributes: Any) -> str:
        """Add a node; the name of its first output."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def constant(self, number: Any, kind: DType) -> str:
        """A constant of a dtype."""
        name = f"c{len(self.held)}"
        self.held[name] = np.asarray(number).astype(kind)
        return name

    def keep(self, name: str, kind: DType, axes: Axes) -> None:
        """A value that later nodes may read."""
        self.values.append((name, kind, axes))

    def some(self, *kinds: DType) -> tuple[str, DType, Axes]:
        """A late value of one of some dtypes; if there is none, one that is cast."""
        known = [each for each in self.values if each[1] in kinds]
        if known:
            return self.random.choice(known[-5:])
        others = [each for each in self.values if each[1] != UINT8]
        name, _, axes = self.random.choice(others or self.values)
        small = self.node("Cast", [name], to=_number(FLOAT32))
        return self.cast(small, FLOAT32, axes, kinds[0]), kinds[0], axes

    def like(self, kind: DType) -> tuple[str, Axes]:
        """An operand of a dtype, sometimes a constant."""
        if self.random.random() < 0.4:
            if kind == BOOL:
                return self.constant(bool(self.random.getrandbits(1)), kind), (False,) * 4
            number = self.random.choice((1, 2, 3, 5, 7, 100))
            if self.random.random() < 0.3:
                numbers = [[[number]], [[number + 1]], [[2]]]
                return self.constant(numbers, kind), (False, True, False, False)
            return self.constant(number, kind), (False,) * 4
        name, _, axes = self.some(kind)
        return name, axes

    def bounded(self, name: str, kind: DType, low: int, high: int) -> str:
        """Elements within bounds: what follows stays exact."""
        if kind not in COUNTED:
            return name
        return self.node("Clip", [name, self.constant(low, kind), self.constant(high, kind)])

    def cast(self, name: str, kind: DType, axes: Axes, to: DType) -> str:
        """A Cast whose result every engine agrees on."""
        del axes
        low, high = (-100, 100) if to in (UINT8, INT8) else (-2000, 2000)
        low = max(low, 0 if to.kind == "uint" else low)
        if to != BOOL and kind != BOOL:
            if kind not in COUNTED:  # there is no Clip of the small ones everywhere
                name, kind = self.node("Cast", [name], to=_number(INT32)), INT32
            name = self.bounded(name, kind, low, high)
        return self.node("Cast", [name], to=_number(to))


def _number(kind: DType) -> int:
    return kind.onnx


def _joined(a: Axes, b: Axes) -> Axes:
    return tuple(x or y for x, y in zip(a, b, strict=True))


def _arithmetic(net: TypedNetwork) -> None:
    name, kind, axes = net.some(*COUNTED)
    other, others = net.like(kind)
    op = net.random.choice(("Add", "Sub", "Mul", "Min", "Max"))
    y = net.node(op, [name, other] if net.random.random() < 0.7 else [other, name])
    net.keep(net.bounded(y, kind, -9999, 9999), kind, _joined(axes, others))


def _cast(net: TypedNetwork) -> None:
    name, kind, axes = net.some(*ALL)
    to = net.random.choice(ALL)
    if net.random.random() < 0.3:  # on the way through a type that is cast only
        kind, name = (between := net.random.choice(_SMALL)), net.cast(name, kind, axes, between)
    net.keep(net.cast(name, kind, axes, to), to, axes)


def _compare(net: TypedNetwork) -> None:
    name, kind, axes = net.some(*COUNTED)
    other, others = net.like(kind)
    if kind == INT64 and net.random.random() < 0.2:  # no float holds these
        far = net.constant(2**62 + 1, INT64)
        name = net.node("Add", [name, far])
        other = net.node("Add", [other, far])
    op = net.random.choice(("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"))
    net.keep(net.node(op, [name, other]), BOOL, _joined(axes, others))


def _logic(net: TypedNetwork) -> None:
    name, _, axes = net.some(BOOL)
    op = net.random.choice(("And", "Or", "Xor", "Not"))
    if op == "Not":
        net.keep(net.node(op, [name]), BOOL, axes)
        return
    other, others = net.like(BOOL)
    net.keep(net.node(op, [name, other]), BOOL, _joined(axes, others))


def _where(net: TypedNetwork) -> None:
    chosen, _, axes = net.some(BOOL)
    name, kind, first = net.some(*COUNTED, UINT8)
    other, second = net.like(kind)
    operands = [name, other] if net.random.random() < 0.5 else [other, name]
    net.keep(net.node("Where", [chosen, *operands]), kind, _joined(axes, _joined(first, second)))


def _scale(net: TypedNetwork) -> None:
    """A quarter or a half of a float, as an integer again; or a quotient of integers."""
    name, kind, axes = net.some(*COUNTED)
    if kind in FLOATING:
        part = net.node("Mul", [name, net.constant(net.random.choice((0.25, 0.5, -0.5)), kind)])
        part = net.node(net.random.choice(("Floor", "Ceil", "Round")), [part])
    else:
        part = net.node("Div", [name, net.constant(net.random.choice((-3, 2, 7)), kind)])
    net.keep(part, kind, axes)


def _modulo(net: TypedNetwork) -> None:
    name, kind, axes = net.some(*COUNTED, UINT8)
    divisor = net.constant(net.random.choice((3, 5, 16)), kind)
    fmod = 1 if kind in FLOATING else net.random.randint(0, 1)
    net.keep(net.node("Mod", [name, divisor], fmod=fmod), kind, axes)


def _place(net: TypedNetwork) -> None:
    name, _, axes = net.some(FLOAT32, FLOAT64, INT32)
    axis = net.random.randrange(4)
    op, last = net.random.choice(("ArgMax", "ArgMin")), net.random.randint(0, 1)
    y = net.node(op, [name], axis=axis, select_last_index=last)
    net.keep(y, INT64, tuple(has and at != axis for at, has in enumerate(axes)))


def _top(net: TypedNetwork) -> None:
    """The largest along an axis: the values, or where they are."""
    name, kind, axes = net.some(*COUNTED)
    axis, name_of = net.random.randrange(4), f"v{len(net.nodes)}"
    largest = net.random.randint(0, 1)
    whole = axis == 1 and axes[1] and net.random.random() < 0.7  # all three channels, sorted
    k = net.constant([3 if whole else 1], INT64)
    node = helper.make_node("TopK", [name, k], [name_of, f"{name_of}p"], axis=axis, largest=largest)
    net.nodes.append(node)
    left = axes if whole else tuple(has and at != axis for at, has in enumerate(axes))
    net.keep(name_of, kind, left)
    if net.random.random() < 0.5:
        net.keep(f"{name_of}p", INT64, left)


def _pool(net: TypedNetwork) -> None:
    """The largest of 3 x 3 neighbours, or where it is."""
    kinds = (*FLOATING, UINT8, INT8)
    images = [each for each in net.values if each[1] in kinds and each[2] == _IMAGE]
    name, kind, axes = net.random.choice(images[-3:])
    y = net.node("MaxPool", [name], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    if net.random.random() < 0.5:
        net.nodes[-1].output.append(f"{y}p")
        net.keep(f"{y}p", INT64, axes)
    net.keep(y, kind, axes)


def _sign(net: TypedNetwork) -> None:
    name, kind, axes = net.some(*COUNTED)
    net.keep(net.node(net.random.choice(("Sign", "Abs", "Neg")), [name]), kind, axes)


def _conv(net: TypedNetwork) -> None:
    """A convolution of small integers, whose result is rounded to what it is exactly."""
    images = [each for each in net.values if each[1] == FLOAT32 and each[2] == _IMAGE]
    name, kind, axes = net.random.choice(images[-3:])
    small = net.bounded(name, kind, -20, 20)
    w = net.constant([[[[net.random.randint(-2, 2)] * 3] * 3] * 3] * 3, kind)
    y = net.node("Round", [net.node("Conv", [small, w], pads=[1, 1, 1, 1])])
    net.keep(y, kind, axes)


def _extent(net: TypedNetwork) -> None:
    """The width of an image, as a number beside data."""
    shape = net.node("Shape", ["x"])
    width = net.node("Gather", [shape, net.constant(3, INT64)])
    name, kind, axes = net.some(INT64)
    y = net.node("Add", [name, width])
    net.keep(net.bounded(y, kind, -9999, 9999), kind, axes)


def _join(net: TypedNetwork) -> None:
    """Some channels of two images, one behind the other."""
    name, kind, axes = net.some(*ALL)
    if not axes[1]:
        return
    others = [each for each, held, has in net.values if held == kind and has == axes]
    y = net.node("Concat", [name, net.random.choice(others)], axis=1)
    start = net.random.randint(0, 3)
    net.keep(_part(net, y, 1, start, start + 3), kind, axes)


def _move(net: TypedNetwork) -> None:
    """Elements of any type, elsewhere."""
    name, kind, axes = net.some(*ALL)
    axis, way = net.random.choice((2, 3)), net.random.randrange(4)
    if way == 0:
        y = _part(net, name, axis, -1, -(2**31), -1)  # from right to left
    elif way == 1 and kind in (*COUNTED, BOOL):
        pads = np.zeros(8, int)
        pads[axis] = 1  # a row or column in front, for the last one
        y = net.node("Pad", [name, net.constant(pads, INT64), net.constant(1, kind)])
        y = _part(net, y, axis, 0, -1)
    elif way == 2 and axes[1]:
        y = net.node("Gather", [name, net.constant([2, 0, 0], INT64)], axis=1)
    else:
        y, axes = net.node("Expand", [name, net.node("Shape", ["x"])]), _IMAGE
    net.keep(y, kind, axes)


def _part(net: TypedNetwork, x: str, axis: int, start: int, end: int, step: int = 1) -> str:
    places = [net.constant([number], INT64) for number in (start, end, axis, step)]
    return net.node("Slice", [x, *places])


def _swap(net: TypedNetwork) -> None:
    """A step on the transposed image."""
    name, kind, axes = net.some(*COUNTED, BOOL)
    turned = net.node("Transpose", [name], perm=[0, 3, 2, 1])
    done = net.node("Not" if kind == BOOL else "Neg", [turned])
    net.keep(net.node("Transpose", [done], perm=[0, 3, 2, 1]), kind, axes)


def _bits(net: TypedNetwork) -> None:
    """Bit by bit, or shifted."""
    name, kind, axes = net.some(INT32, INT64, UINT8)
    if kind == UINT8 and net.random.random() < 0.5:
        way, by = net.random.choice(("LEFT", "RIGHT")), net.constant(net.random.randrange(8), kind)
        net.keep(net.node("BitShift", [name, by], direction=way), kind, axes)
        return
    other, others = net.like(kind)
    op = net.random.choice(("BitwiseAnd", "BitwiseOr", "BitwiseXor"))
    turned = net.node("BitwiseNot", [net.node(op, [name, other])])
    net.keep(net.bounded(turned, kind, -9999, 9999), kind, _joined(axes, others))


def _power(net: TypedNetwork) -> None:
    """A small power, of an exponent of any type."""
    name, kind, axes = net.some(INT32, INT64)
    exponent = net.constant(net.random.randrange(4), net.random.choice(COUNTED))
    y = net.node("Pow", [net.bounded(name, kind, -20, 20), exponent])
    net.keep(net.bounded(y, kind, -9999, 9999), kind, axes)


def _piecewise(net: TypedNetwork) -> None:
    """Nothing between bounds, or below one; or 1 where the largest of a row is."""
    name, kind, axes = net.some(FLOAT32, FLOAT64)
    op = net.random.choice(("Shrink", "ThresholdedRelu", "Hardmax"))
    attributes: dict[str, dict[str, Any]] = {
        "Shrink": {"lambd": 2.0, "bias": 1.0},
        "ThresholdedRelu": {"alpha": 3.0},
        "Hardmax": {"axis": net.random.randrange(4)},
    }
    net.keep(net.node(op, [name], **attributes[op]), kind, axes)


def _reduce(net: TypedNetwork) -> None:
    """The sum or an extreme along one or two axes."""
    name, kind, axes = net.some(*COUNTED)
    over = net.random.sample(range(4), net.random.randint(1, 2))
    op = net.random.choice(("ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1"))
    if op == "ReduceL1" and kind == INT64:  # ONNX Runtime lacks it
        op = "ReduceSum"
    y = net.node(op, [net.bounded(name, kind, -99, 99), net.constant(over, INT64)])
    net.keep(y, kind, tuple(has and at not in over for at, has in enumerate(axes)))


def _running(net: TypedNetwork) -> None:
    """Sums of what came before along an axis."""
    name, kind, axes = net.some(*COUNTED)
    place = net.constant(net.random.randrange(-4, 4), INT64)
    settings = {"exclusive": net.random.randint(0, 1), "reverse": net.random.randint(0, 1)}
    y = net.node("CumSum", [net.bounded(name, kind, -99, 99), place], **settings)
    net.keep(net.bounded(y, kind, -9999, 9999), kind, axes)


def _triangle(net: TypedNetwork) -> None:
    """One side of a diagonal of each channel."""
    name, kind, axes = net.some(FLOAT32, FLOAT64, INT64, BOOL)
    k = net.constant(net.random.randrange(-3, 4), INT64)
    net.keep(net.node("Trilu", [name, k], upper=net.random.randint(0, 1)), kind, axes)


def _not_finite(net: TypedNetwork) -> None:
    """Whether roots or quotients are numbers."""
    name, _, axes = net.some(*FLOATING)
    if net.random.random() < 0.5:
        net.keep(net.node("IsNaN", [net.node("Sqrt", [name])]), BOOL, axes)
        return
    positive, negative = net.random.choice(((1, 1), (1, 0), (0, 1)))
    y = net.node("Reciprocal", [net.node("Abs", [name])])  # ONNX Runtime's Where loses -0.0
    if net.random.random() < 0.5:
        y = net.node("Neg", [y])
    y = net.node("IsInf", [y], detect_positive=positive, detect_negative=negative)
    net.keep(y, BOOL, axes)


def _quantisation(net: TypedNetwork, code: DType, axes: Axes) -> list[str]:
    """A scale and a zero point, or those of each channel."""
    scale, zero = net.random.choice((1, 2, 4)), net.random.choice((0, 3, 7))
    if axes[1] and net.random.random() < 0.4:
        return [net.constant([scale, 1, 2], FLOAT32), net.constant([zero, zero, 1], code)]
    return [net.constant(scale, FLOAT32), net.constant(zero, code)]


def _quantise(net: TypedNetwork) -> None:
    """Codes of floats."""
    name, _, axes = net.some(FLOAT32)
    code = net.random.choice((UINT8, INT8))
    y = net.node("QuantizeLinear", [name, *_quantisation(net, code, axes)], axis=1)
    net.keep(y, code, axes)


def _dequantise(net: TypedNetwork) -> None:
    """Floats of codes."""
    name, code, axes = net.some(UINT8, INT8)
    y = net.node("DequantizeLinear", [name, *_quantisation(net, code, axes)], axis=1)
    net.keep(y, FLOAT32, axes)


def _chain(net: TypedNetwork) -> None:
    """Steps of single elements, each of which alone reads what the one before gives."""
    kept, net.values = net.values, [net.some(*ALL)]
    each = (_arithmetic, _cast, _compare, _logic, _where, _scale, _modulo, _sign, _bits, _power)
    each = (*each, _not_finite, _quantise, _quantise, _dequantise, _dequantise)
    for _ in range(net.random.randint(2, 7)):
        net.random.choice(each)(net)
        net.values = net.values[-1:]
    net.values = [*kept, *net.values]

"""Expressions of elementwise operations: a tuple of steps, each a function of earlier values.

Strides of operands that are broadcast to a result are here, too, plain or in blocks of channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from leanconv.codegen import activations, math, trigonometry
from leanconv.codegen.emitter import Function, Value
from leanconv.graph.ir import Node
from leanconv.graph.ops.pointwise import UNARY_ACTIVATIONS, activation_of
from leanconv.kernels import quantised_steps, typed_steps
from leanconv.records import dataclass
from leanconv.spec.activation import KINDS, Activation
from leanconv.spec.format import Format
from leanconv.types import DType


def merged(
    extents: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Merge neighbouring axes that every operand walks as one, and drop those of one element."""
    axes: list[tuple[int, tuple[int, ...]]] = []
    for axis, extent in enumerate(extents):
        steps = tuple(s[axis] for s in strides)
        if extent == 1:
            continue
        if axes and all(a == b * extent for a, b in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = (axes[-1][0] * extent, steps)
        else:
            axes.append((extent, steps))
    axes = axes or [(1, (0,) * len(strides))]
    return (
        tuple(extent for extent, _ in axes),
        tuple(tuple(steps[i] for _, steps in axes) for i in range(len(strides))),
    )


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a row-major array, 0 along axes of one element."""
    after = list(accumulate(reversed(shape), lambda a, b: a * b, initial=1))[-2::-1]
    return tuple(0 if extent == 1 else s for extent, s in zip(shape, after, strict=True))


def broadcast_strides(
    shape: tuple[int, ...], result: tuple[int, ...], operand: Format, output: Format
) -> tuple[int, ...]:
    """Strides of an operand along the axes of the result's memory."""
    aligned = (1,) * (len(result) - len(shape)) + shape
    if not output.block:
        return row_major(aligned)
    if not operand.block:
        assert aligned[1] == 1, "an operand with channels has the result's format"
        return (*row_major(aligned), 0)
    strides = row_major(operand.physical_shape(aligned))
    if aligned[1] == 1 and result[1] > 1:
        return (strides[0], 0, *strides[2:-1], 0)
    return strides


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "Sqrt": lambda e, x: e.unary("sqrt", x),
    "Exp": math.exp,
    "Log": math.log,
    "Erf": math.erf,
    "Neg": math.negate,
    "Abs": lambda e, x: e.unary("fabs", x),
    "Reciprocal": lambda _, x: 1.0 / x,
    "Softplus": math.softplus,
    "Floor": lambda e, x: e.unary("floor", x),
    "Ceil": lambda e, x: e.unary("ceil", x),
    "Round": lambda e, x: e.unary("rint", x),
    "Sign": math.sign,
    "Sin": trigonometry.sin,
    "Cos": trigonometry.cos,
    "Tan": trigonometry.tan,
    "Asin": trigonometry.asin,
    "Acos": trigonometry.acos,
    "Atan": trigonometry.atan,
    "Sinh": trigonometry.sinh,
    "Cosh": trigonometry.cosh,
    "Asinh": trigonometry.asinh,
    "Acosh": trigonometry.acosh,
    "Atanh": trigonometry.atanh,
    "Square": lambda _, x: x * x,
    "Cube": lambda _, x: x * x * x,
    "Add": lambda _, a, b: a + b,
    "Sub": lambda _, a, b: a - b,
    "Mul": lambda _, a, b: a * b,
    "Div": lambda _, a, b: a / b,
    "Pow": math.power,
    "Mod": math.modulo,
    "Min": math.smaller,
    "Max": math.larger,
    "PRelu": lambda e, x, slope: activations.apply(e, x, Activation("prelu"), slope),
}
BINARY = ("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Min", "Max", "PRelu")
UNARY = (
    *UNARY_ACTIVATIONS,
    *("Sqrt", "Exp", "Log", "Erf", "Neg", "Abs", "Reciprocal", "Softplus"),
    *("Floor", "Ceil", "Round", "Sign"),
    *("Sin", "Cos", "Tan", "Asin", "Acos", "Atan"),
    *("Sinh", "Cosh", "Asinh", "Acosh", "Atanh"),
)
_POWERS = {2.0: "Square", 3.0: "Cube", 0.5: "Sqrt", -1.0: "Reciprocal"}


@dataclass(frozen=True)
class Step:
    """One operation of an expression.

    Attributes:
        op: a kind of activation, or a key of the table of functions above.
        args: which values it takes: the operands come first, then the kernel's numbers, then the
            results of the steps before.
        parameters: the activation's, or a typed step's; of a quotient of floats that becomes a
            code: that it is computed by the reciprocal of its scale.
        types: of the last operand and of the result; empty where all are floats of one type. Of a
            step between floats and codes: of all operands and of the result.
    """

    op: str
    args: tuple[int, ...]
    parameters: tuple[float, ...] = ()
    types: tuple[DType, ...] = ()

    def apply(self, e: Function, values: Sequence[Value]) -> Value:
        """Append the code of this step."""
        args = [values[i] for i in self.args]
        if self.op in quantised_steps.OPS:
            return quantised_steps.apply(e, self.op, args, self.types, *map(bool, self.parameters))
        if self.types:
            return typed_steps.apply(e, self.op, args, self.types, *self.parameters)
        if self.op in KINDS:
            return activations.apply(e, args[0], Activation(self.op, self.parameters), *args[1:])
        return _FUNCTIONS[self.op](e, *args, *self.parameters)


def step_of(
    node: Node, args: tuple[int, ...], types: tuple[DType, ...], exponent: float | None = None
) -> Step:
    """The step that a node of the graph is.

    Args:
        node: its operation is one of `UNARY`, `BINARY` or `typed_steps.OPS`.
        args: as `Step.args`.
        types: of the node's inputs and of its output.
        exponent: the exponent of a `Pow` where it is one known number.
    """
    if node.op in quantised_steps.OPS:
        return Step(node.op, args, types=quantised_steps.step_types(node, types))
    op, parameters = node.op, typed_steps.parameters_of(node.op, node.attributes)
    if op == "Pow" and exponent == 2 and types[-1].is_integer:
        return Step("Mul", args[:1] * 2, (), (types[-1],) * 2)
    if op not in (*UNARY, *BINARY) or not types[-1].is_float:
        return Step(op, args, parameters, types[-2:])
    if op == "Pow" and exponent in _POWERS:
        return Step(_POWERS[exponent], args[:1])
    activation = activation_of(node) if op in UNARY_ACTIVATIONS else None
    if activation is None:
        return Step(op, args, parameters)
    return Step(activation.kind, args, activation.parameters)

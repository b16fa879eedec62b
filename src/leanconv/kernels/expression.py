"""Expressions of elementwise operations: a tuple of steps, each a function of earlier values.

Strides of operands that are broadcast to a result are here, too, plain or in blocks of channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from leanconv.codegen import activations, math, trigonometry
from leanconv.codegen.emitter import Function, Value
from leanconv.graph.ir import Node
from leanconv.graph.ops import OPS
from leanconv.graph.ops.pointwise import activation_of
from leanconv.kernels import quantised_steps, typed_steps
from leanconv.kernels.typed_steps import cast, comparison, extreme
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


@dataclass(frozen=True)
class _Code:
    """Functions that append the code of an operation, given what is named here.

    Attributes:
        floats: floats of one type, and the step's parameters.
        typed: the step's types, its operands and parameters: of integers, or of what the operation
            takes where it has no `floats`.
    """

    floats: Callable[..., Value] | None = None
    typed: Callable[..., Value] | None = None


# All elementwise operations but those of `quantised_steps` and activations of floats.
_CODE: dict[str, _Code] = {
    "Sqrt": _Code(lambda e, x: e.unary("sqrt", x)),
    "Exp": _Code(math.exp),
    "Log": _Code(math.log),
    "Erf": _Code(math.erf),
    "Neg": _Code(math.negate, lambda _, __, x: x.zero() - x),
    "Abs": _Code(lambda e, x: e.unary("fabs", x), typed_steps.absolute),
    "Relu": _Code(typed=lambda e, types, x: extreme(e, types[0], "max", x, x.zero())),
    "Reciprocal": _Code(lambda _, x: 1.0 / x),
    "Softplus": _Code(math.softplus),
    "Floor": _Code(lambda e, x: e.unary("floor", x)),
    "Ceil": _Code(lambda e, x: e.unary("ceil", x)),
    "Round": _Code(lambda e, x: e.unary("rint", x)),
    "Sign": _Code(math.sign, typed_steps.sign),
    "Sin": _Code(trigonometry.sin),
    "Cos": _Code(trigonometry.cos),
    "Tan": _Code(trigonometry.tan),
    "Asin": _Code(trigonometry.asin),
    "Acos": _Code(trigonometry.acos),
    "Atan": _Code(trigonometry.atan),
    "Sinh": _Code(trigonometry.sinh),
    "Cosh": _Code(trigonometry.cosh),
    "Asinh": _Code(trigonometry.asinh),
    "Acosh": _Code(trigonometry.acosh),
    "Atanh": _Code(trigonometry.atanh),
    "Square": _Code(lambda _, x: x * x),
    "Cube": _Code(lambda _, x: x * x * x),
    "Add": _Code(lambda _, a, b: a + b, lambda _, __, a, b: a + b),
    "Sub": _Code(lambda _, a, b: a - b, lambda _, __, a, b: a - b),
    "Mul": _Code(lambda _, a, b: a * b, lambda _, __, a, b: a * b),
    "Div": _Code(lambda _, a, b: a / b, typed_steps.quotient),
    "Mod": _Code(math.modulo, typed_steps.remainder),
    "Pow": _Code(math.power, typed_steps.power),
    "Min": _Code(math.smaller, lambda e, types, a, b: extreme(e, types[0], "min", a, b)),
    "Max": _Code(math.larger, lambda e, types, a, b: extreme(e, types[0], "max", a, b)),
    "Cast": _Code(typed=lambda e, types, x: cast(e, x, *types)),
    "BitCast": _Code(typed=typed_steps.bits),
    "Equal": _Code(typed=comparison("oeq", "eq", "eq")),
    "Less": _Code(typed=comparison("olt", "slt", "ult")),
    "LessOrEqual": _Code(typed=comparison("ole", "sle", "ule")),
    "Greater": _Code(typed=comparison("ogt", "sgt", "ugt")),
    "GreaterOrEqual": _Code(typed=comparison("oge", "sge", "uge")),
    "And": _Code(typed=lambda _, __, a, b: a & b),
    "Or": _Code(typed=lambda _, __, a, b: a | b),
    "Xor": _Code(typed=lambda _, __, a, b: a ^ b),
    "Not": _Code(typed=lambda _, __, x: x ^ 1),
    "BitwiseAnd": _Code(typed=lambda _, __, a, b: a & b),
    "BitwiseOr": _Code(typed=lambda _, __, a, b: a | b),
    "BitwiseXor": _Code(typed=lambda _, __, a, b: a ^ b),
    "BitwiseNot": _Code(typed=lambda _, __, x: x ^ -1),
    "BitShift": _Code(typed=typed_steps.shift),
    "IsNaN": _Code(typed=lambda _, __, x: x.compare("uno", x)),
    "IsInf": _Code(typed=typed_steps.is_infinite),
    "Where": _Code(typed=lambda e, _, chosen, a, b: e.select(chosen, a, b)),
}
_POWERS = {2.0: "Square", 3.0: "Cube", 0.5: "Sqrt", -1.0: "Reciprocal"}


@dataclass(frozen=True)
class Step:
    """One operation of an expression.

    Attributes:
        op: a kind of activation, or a key of the table above.
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
        if self.op in KINDS:
            return activations.apply(e, args[0], Activation(self.op, self.parameters), *args[1:])
        code = _CODE[self.op]
        if not self.types:
            assert code.floats, f"{self.op} is no step of floats"
            return code.floats(e, *args, *self.parameters)
        typed = None if code.floats and self.types[0].is_float else code.typed
        assert typed, f"{self.op} of {self.types[0]} is no typed step"
        return typed(e, self.types, *args, *self.parameters)


def step_of(
    node: Node, args: tuple[int, ...], types: tuple[DType, ...], exponent: float | None = None
) -> Step:
    """The step that a node of the graph is.

    Args:
        node: an elementwise operation, no Expression.
        args: as `Step.args`.
        types: of the node's inputs and of its output.
        exponent: the exponent of a `Pow` where it is one known number.
    """
    if node.op in quantised_steps.OPS:
        return Step(node.op, args, types=quantised_steps.step_types(node, types))
    floats, activation = types[-1].is_float, activation_of(node)
    if floats and activation is not None:
        return Step(activation.kind, args, activation.parameters)
    if node.op == "Pow" and floats and exponent in _POWERS:
        return Step(_POWERS[exponent], args[:1])
    if node.op == "Pow" and not floats and exponent == 2:
        return Step("Mul", args[:1] * 2, (), (types[-1],) * 2)
    # An attribute that is a type is among the step's types.
    given = (node.attributes[name] for name in OPS[node.op].attributes if name != "to")
    alike = floats and _CODE[node.op].floats is not None
    return Step(node.op, args, tuple(map(bool, given)), () if alike else types[-2:])
